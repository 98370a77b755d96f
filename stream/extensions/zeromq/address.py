"""Check of the address of a ZeroMQ source. Imports no ZeroMQ."""

from __future__ import annotations

from stream.config import CaptureConfig, NetworkConfig, check_reachable, needs_keys
from stream.sources.address import PULL, ZMQ_PREFIX


def check_source(address: str, capture: CaptureConfig, network: NetworkConfig) -> None:
    """Raise ConfigError for an invalid endpoint or missing keys."""
    endpoint = address.removeprefix(ZMQ_PREFIX).removesuffix(PULL)
    needs_keys(network, endpoint)
    check_reachable(endpoint)
