"""Tensors of a device that is not here: they hold values, lie elsewhere, and count copies to the host.

    with DeviceTensors() as device:
        there = torch.ones(3).to(device.place)   # lies on `device.place`; cannot become an array
        there.sum().item()                       # a copy to the host: device.copies == ["_local_scalar_dense"]

An operation on tensors of both sides raises, as it does with CUDA. The place is called "meta", which torch knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

PLACE = torch.device("meta")

READS_BACK = ("_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "masked_select", "unique")
"""Operations that report a value to the host, or wait until the device has reported how large a result is."""

TAKES_HOST_NUMBERS = ("index", "index_put", "_index_put_impl")
"""Operations of CUDA that accept indices of the host."""


class DeviceTensor(torch.Tensor):
    """A tensor whose values are `held` in host memory, which only kernels of the emulated driver read."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> DeviceTensor:
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=PLACE
        )
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.held})"

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on a device's tensor, outside of `DeviceTensors`")


class DeviceTensors(TorchDispatchMode):
    """While active, `place` is a separate device. `copies`: the operations that brought values to the host."""

    place = PLACE

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[str] = []
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name == "_has_compatible_shallow_copy_type":
            return False  # a module's parameters are replaced when it moves
        kwargs = dict(kwargs or {})
        args, kwargs = _device_by_name(func, args, kwargs)
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
        there = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
        wanted = kwargs.get("device")
        self._check_places(name, tensors, there)
        if "device" in kwargs and wanted is not None and torch.device(wanted) == PLACE:
            kwargs["device"] = torch.device("cpu")
        made = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        if there and wanted is not None and torch.device(wanted).type == "cpu":
            self._note(name, there[0])
            return made.clone()
        if there and (name in READS_BACK or _has_masks(name, tensors)):
            self._note(name, there[0])
        if there and name in READS_BACK and not isinstance(made, torch.Tensor):
            return made
        if name == "copy_" and there and not isinstance(args[0], DeviceTensor):
            self._note(name, there[0])
            return args[0]
        goes_there = bool(there) or (wanted is not None and torch.device(wanted) == PLACE)
        return tree_map(_wrapped, made) if goes_there else made

    def _check_places(self, name: str, tensors: list[torch.Tensor], there: list[Any]) -> None:
        mixed = there and any(tensor.ndim and not isinstance(tensor, DeviceTensor) for tensor in tensors)
        if mixed and name not in (*TAKES_HOST_NUMBERS, "copy_", "_to_copy", "to"):
            raise RuntimeError(f"{name}: tensors of the device and of the host, which must be moved first")

    def _note(self, name: str, tensor: torch.Tensor) -> None:
        self.copies.append("to" if name == "_to_copy" else name)
        self.bytes += tensor.numel() * tensor.element_size()

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """The copies that are made meanwhile."""
        before = len(self.copies)
        made: list[str] = []
        yield made
        made += self.copies[before:]


def _device_by_name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments in which a device comes by name: from there on as the schema names them."""
    names = [argument.name for argument in func._schema.arguments]
    if "device" in names[: len(args)]:
        at = names.index("device")
        kwargs = {**dict(zip(names[at:], args[at:], strict=False)), **kwargs}
        args = args[:at]
    return args, kwargs


def _has_masks(name: str, tensors: list[torch.Tensor]) -> bool:
    """Whether a mask chooses elements: their number has to be known first."""
    return name in TAKES_HOST_NUMBERS and any(tensor.dtype == torch.bool for tensor in tensors[1:])


def _held(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value


def _wrapped(value: Any) -> Any:
    return DeviceTensor(value) if isinstance(value, torch.Tensor) else value


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """The values that a test looks at, which is not counted."""
    return _held(tensor)
