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
    """A tensor whose values are `host`, in host memory, which only kernels of the emulated driver read."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> DeviceTensor:
        tensor: DeviceTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, host.shape, strides=host.stride(), dtype=host.dtype, device=PLACE
        )
        tensor.host = host
        return tensor

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.host})"

    def data_ptr(self) -> int:
        return self.host.data_ptr()

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
        device_tensors = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
        target = kwargs.get("device")
        self._check_places(name, tensors, device_tensors)
        if "device" in kwargs and target is not None and torch.device(target) == PLACE:
            kwargs["device"] = torch.device("cpu")
        result = func(*tree_map(_on_host, args), **tree_map(_on_host, kwargs))
        if device_tensors and target is not None and torch.device(target).type == "cpu":
            self._note(name, device_tensors[0])
            return result.clone()
        if device_tensors and (name in READS_BACK or _has_masks(name, tensors)):
            self._note(name, device_tensors[0])
        if device_tensors and name in READS_BACK and not isinstance(result, torch.Tensor):
            return result
        if name == "copy_" and device_tensors and not isinstance(args[0], DeviceTensor):
            self._note(name, device_tensors[0])
            return args[0]
        on_device = bool(device_tensors) or (target is not None and torch.device(target) == PLACE)
        return tree_map(_wrapped, result) if on_device else result

    def _check_places(self, name: str, tensors: list[torch.Tensor], device_tensors: list[Any]) -> None:
        mixed = device_tensors and any(tensor.ndim and not isinstance(tensor, DeviceTensor) for tensor in tensors)
        if mixed and name not in (*TAKES_HOST_NUMBERS, "copy_", "_to_copy", "to"):
            raise RuntimeError(f"{name}: tensors of the device and of the host, which must be moved first")

    def _note(self, name: str, tensor: torch.Tensor) -> None:
        self.copies.append("to" if name == "_to_copy" else name)
        self.bytes += tensor.numel() * tensor.element_size()

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """The copies that are made meanwhile."""
        before = len(self.copies)
        copies: list[str] = []
        yield copies
        copies += self.copies[before:]


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


def _on_host(value: Any) -> Any:
    return value.host if isinstance(value, DeviceTensor) else value


def _wrapped(value: Any) -> Any:
    return DeviceTensor(value) if isinstance(value, torch.Tensor) else value


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """The values that a test looks at, which is not counted."""
    return _on_host(tensor)
