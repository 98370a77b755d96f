"""Ray: the connection to a cluster, its resources, and actors on its nodes. The only module that imports ray."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stream.control import STDERR
from stream.errors import ConfigError, StageDied, StreamError
from stream.options.extra import RAY

AUTO = "auto"

ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_NUM_REDIS_GET_RETRIES": "2",
    "RAY_py_gcs_connect_timeout_s": "5",
}
"""Environment of Ray, unless already set: no warning about a future default, no statistics sent to its
makers, and no minutes of attempts if another program listens at the address."""

log = logging.getLogger(__name__)

_ADDRESS = re.compile(r"(?P<host>[^\s:/]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")


class HostUnavailable(StreamError):
    """An actor that cannot be reached now: its node is gone or busy, or Ray has not started it again yet."""


class ClusterActor:
    """One actor: its name, and calls of its methods. For any thread."""

    def __init__(self, name: str, handle: Any) -> None:
        self.name = name
        self._handle = handle

    def call(self, method: str, *arguments: object, limit_s: float) -> Any:
        """Return what a method returns. Raises HostUnavailable if there is no reply in time, StageDied if the
        actor is gone for good, and what the method raised as StageDied too."""
        import ray

        with _as_own_errors(self.name):
            return ray.get(getattr(self._handle, method).remote(*arguments), timeout=limit_s)

    def stream(self, method: str, *arguments: object) -> ActorStream:
        """Yield the items of a method."""
        # batches of reports that may wait for the command before an actor waits
        call = getattr(self._handle, method).options(_generator_backpressure_num_objects=16)
        return ActorStream(self.name, call.remote(*arguments))

    def restart(self) -> None:
        """Kill its process; Ray starts it again, there or elsewhere."""
        self.kill(no_restart=False)

    def kill(self, *, no_restart: bool = True) -> None:
        """End its process for good; may be called twice."""
        import ray

        with contextlib.suppress(Exception):  # the cluster may be gone
            ray.kill(self._handle, no_restart=no_restart)


class ActorStream:
    """Items that a method of an actor yields, in their order."""

    def __init__(self, name: str, items: Any) -> None:
        self._name = name
        self._items = items

    def next(self, wait_s: float) -> Any:
        """Return the next item; None if there is none in time. Raises what `ClusterActor.call` raises."""
        import ray

        with _as_own_errors(self._name):
            ready, _ = ray.wait([self._items], timeout=wait_s)
            return ray.get(next(self._items)) if ready else None


class RayCluster:
    """Connection to a cluster, one in a process; `close` ends it, and with it all of its actors.

    Raises ConfigError if Ray is not installed, or the cluster cannot be used.
    """

    def __init__(self, address: str) -> None:
        RAY.require("--ray")
        _probe(address)
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import ray

        try:
            with _stderr_to_nowhere():
                ray.init(address=address, log_to_driver=False, configure_logging=False)
        except Exception as error:
            raise ConfigError(_refusal(address, error)) from error
        # Ray's messages about its nodes are logged, as standard output belongs to answers and JSON lines. Ray has no
        # option for it (2.60): `log_to_driver` is about the output of actors.
        logging.getLogger("ray").setLevel(logging.CRITICAL)
        with contextlib.suppress(ImportError):
            from ray._private import worker

            if hasattr(worker, "print_to_stdstream"):
                worker.print_to_stdstream = lambda data, **_: log.debug("%s", data)
        self.address = address

    def check(self, needs: Mapping[str, Mapping[str, float]]) -> None:
        """Raise ConfigError if a node, or all of them together, lack resources that actors need.

        `needs` has the resources of each actor by its name.
        """
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        total: dict[str, float] = {}
        for name, requirements in needs.items():
            for resource, amount in requirements.items():
                total[resource] = total.get(resource, 0.0) + amount
            if not any(_holds(node, requirements) for node in nodes):
                raise ConfigError(
                    f"no node of the Ray cluster has what {name} needs, {_listed(requirements)}; start one with "
                    f"{_start_command(requirements)}, or change the table [ray] of the file"
                )
        for resource, amount in total.items():
            available = sum(node.get(resource, 0.0) for node in nodes)
            if available < amount:
                raise ConfigError(
                    f"cameras and answer servers need {_listed({resource: amount})}, and the Ray cluster has "
                    f"{available:g}; start more nodes with {_start_command({resource: amount - available})}, or ask "
                    "for less in the table [ray] of the file"
                )

    def has_room(self, resources: Mapping[str, float]) -> bool:
        """Return whether these resources are free now, on all nodes together."""
        import ray

        return _holds(ray.available_resources(), resources)

    def start(
        self, kind: Callable[..., object], name: str, resources: Mapping[str, float], *arguments: object
    ) -> ClusterActor:
        """Start an actor and return at once; Ray starts it again elsewhere if its node fails, with the same arguments.

        Args:
            kind: Class of the actor.
            name: Name of the actor in the cluster, the first argument of its class.
            resources: Amounts of what the actor needs: CPU, GPU, and custom resources of nodes.
            arguments: The other arguments of its class.
        """
        import ray

        others = {key: amount for key, amount in resources.items() if key not in ("CPU", "GPU")}
        actor_class = ray.remote(kind).options(
            name=name,
            num_cpus=resources.get("CPU", 0),
            num_gpus=resources.get("GPU", 0),
            resources=others,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=8,  # calls of an actor that may be under way at once; the one that yields reports always is
            scheduling_strategy="SPREAD",
        )
        return ClusterActor(name, actor_class.remote(name, *arguments))

    def close(self) -> None:
        """End the connection; Ray kills the actors."""
        import ray

        with contextlib.suppress(Exception):
            ray.shutdown()


def node_id() -> str:
    """Return the id of the node of the actor that asks."""
    import ray

    return ray.get_runtime_context().get_node_id()


def node_address() -> str:
    """Return the address at which other nodes reach the node of the actor that asks."""
    import ray.util

    return ray.util.get_node_ip_address()


@contextlib.contextmanager
def _as_own_errors(name: str) -> Iterator[None]:
    """Raise HostUnavailable or StageDied for an error of Ray inside the block."""
    from ray import exceptions

    try:
        yield
    except exceptions.GetTimeoutError as error:
        raise HostUnavailable(f"{name} does not reply") from error
    except (exceptions.ActorDiedError, exceptions.RayTaskError) as error:
        raise StageDied(name, _reason(str(error))) from error
    except exceptions.RayError as error:
        raise HostUnavailable(f"{name} cannot be reached: its process or its node is gone") from error


@contextlib.contextmanager
def _stderr_to_nowhere() -> Iterator[None]:
    """Discard stderr inside the block: Ray's native code logs each attempt there, and the exception reports it."""
    stderr = os.dup(STDERR)
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.dup2(nowhere, STDERR)
        yield
    finally:
        os.dup2(stderr, STDERR)
        os.close(nowhere)
        os.close(stderr)


def _probe(address: str) -> None:
    """Raise ConfigError for an invalid address, and if nothing listens there: Ray would try for a minute."""
    if address == AUTO:
        return
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise ConfigError(f"--ray {address} is not the address of a Ray cluster; give HOST:PORT, such as 10.0.0.1:6379")
    try:
        # time for a connection to the address of a cluster, before Ray itself tries for longer
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), 5.0).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster at {address}: {error.strerror or error}; start one with `ray start --head`, which prints "
            "its address"
        ) from error


def _refusal(address: str, error: Exception) -> str:
    """Return one line with the remedy for a cluster that Ray cannot use."""
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        return f"the Ray cluster at {address} has another version: {_shortened(text)}; install the cluster's versions"
    if "uthenticat" in text or "token" in text:
        return (
            f"the Ray cluster at {address} does not accept this user: {_shortened(text)}; copy its token "
            "(~/.ray/auth_token), or set RAY_AUTH_MODE as the cluster has it"
        )
    if address == AUTO:
        return "there is no Ray cluster on this machine; start one with `ray start --head`, or give --ray HOST:PORT"
    return (
        f"cannot join the Ray cluster at {address}: {_shortened(text)}; this machine has to be one of its nodes: "
        f"`ray start --address={address}`"
    )


def _holds(node: Mapping[str, float], requirements: Mapping[str, float]) -> bool:
    return all(node.get(name, 0.0) >= amount for name, amount in requirements.items())


def _listed(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def _start_command(resources: Mapping[str, float]) -> str:
    """Return the command that starts a node with these resources."""
    options = [f"--num-{name.lower()}s={amount:g}" for name, amount in resources.items() if name in ("CPU", "GPU")]
    others = [f'"{name}": {amount:g}' for name, amount in resources.items() if name not in ("CPU", "GPU")]
    if others:
        options.append(f"--resources='{{{', '.join(others)}}}'")
    return f"`ray start {' '.join(options)} --address=…`"


def _reason(text: str) -> str:
    """Return in one line why an actor is gone."""
    missing = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", text)
    if missing is not None:
        return f"its node has no Python package {missing[1].partition('.')[0]}; install arr-coc-stream on every node"
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return _shortened(lines[-1] if lines else "it died")


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"
