"""State of a program's objects: the values of all attributes of all instances that are reached from some."""

from __future__ import annotations

import ctypes
import enum
import functools
import hashlib
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

PACKAGES = ("stream", "arr_coc")


@dataclass(frozen=True, slots=True)
class Value:
    """Value of an attribute, to be compared. `content` is equal for equal values; `is_array`: it is, or has, an array
    of more than one element."""

    content: object
    is_array: bool = False


INSTANCE = Value("instance")
"""Stands for an object with attributes. Those are looked at themselves, unless it is of a library."""


@dataclass(slots=True)
class ObjectState:
    """Values by "Class.attribute", of all instances of a class together. The elements of a list, a deque, a set and a
    dictionary are values of their own; an instance stands for its class alone, as its attributes are values, too."""

    values: dict[str, set[Value]] = field(default_factory=dict)

    def of(self, name: str) -> set[Value]:
        """Return the values of an attribute; none if no instance has it."""
        return self.values.get(name, set())

    @classmethod
    def reached_from(cls, *roots: object) -> ObjectState:
        """Return the state of all instances of classes of the product that can be reached from these objects."""
        state, visited = cls(), dict[int, object]()
        waiting = list(roots)
        while waiting:
            item = waiting.pop()
            if id(item) in visited:
                continue
            visited[id(item)] = item  # an object that is gone would leave its id to another one
            if not is_of_product(item):
                waiting += _parts(item)
                continue
            for name, value in _attributes(item):
                key = f"{type(item).__name__}.{name}"
                values = map(_value, _elements(value))
                state.values.setdefault(key, set()).update(entry for entry in values if entry != INSTANCE)
                waiting.append(value)
        return state


def is_of_product(item: object) -> bool:
    """Return whether an object is an instance of a class of the product, which may keep state in attributes."""
    package = type(item).__module__.partition(".")[0]
    return package in PACKAGES and not isinstance(item, (enum.Enum, ctypes.Structure))


def _attributes(item: object) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an instance, wherever they are stored, but those of its class."""
    names = dict.fromkeys(getattr(item, "__dict__", {}))
    for kind in type(item).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names.update(dict.fromkeys((slots,) if isinstance(slots, str) else slots))
    names.update(dict.fromkeys(getattr(item, "__struct_fields__", ())))
    for name in names:
        if name not in ("__dict__", "__weakref__") and hasattr(item, name):
            yield name, getattr(item, name)


def _parts(item: object) -> Iterable[object]:
    """Return what an object of Python's own, or of a library, refers to, as far as it may lead to state."""
    if isinstance(item, (list, tuple, set, frozenset, deque)):
        return list(item)
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    if isinstance(item, types.MethodType):
        return [item.__self__]
    if isinstance(item, functools.partial):
        return [item.func, *item.args, *item.keywords.values()]
    if isinstance(item, types.FunctionType):
        return [cell.cell_contents for cell in item.__closure__ or () if cell != types.CellType()]
    return []


def _elements(value: object) -> Iterable[object]:
    """Return the elements of a container whose elements come and go, or the value itself."""
    if isinstance(value, (list, deque, set)):
        return list(value)
    if isinstance(value, dict):
        return list(value.items())
    return [value]


def _value(item: object) -> Value:
    array = item.detach().cpu().numpy() if isinstance(item, torch.Tensor) else item
    if isinstance(array, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        return Value((array.shape, array.dtype.str, digest), is_array=array.size > 1)
    if isinstance(item, (bytes, bytearray, memoryview)):
        return Value(("bytes", hashlib.sha256(item).hexdigest()))
    if isinstance(item, (tuple, list, deque, set, frozenset, dict)):
        parts = [_value(part) for part in (item.items() if isinstance(item, dict) else item)]
        contents = [part.content for part in parts]
        content = frozenset(contents) if isinstance(item, (set, frozenset, dict)) else tuple(contents)
        return Value((type(item).__name__, content), any(part.is_array for part in parts))
    if item is None or isinstance(item, (bool, int, float, complex, str, enum.Enum)):
        return Value((type(item).__name__, item if item == item else "nan"))
    return INSTANCE
