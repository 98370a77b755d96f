"""The compiled kernel of linear layers with weights of 8 and 4 bits, `kernels/linear.cpp`; without it, torch's own
kernels multiply, more slowly.

It runs on torch's OpenMP threads, whose library torch has loaded for all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from arr_coc.qwen.small_weights.rows import Rows
from arr_coc.texture.kernels import library_or_none, load_library

VERSION = 6
"""Of the kernel's interface, as `linear_version` of kernels/linear.cpp has it."""

ALIGNED_INPUTS = 64
"""Inputs are padded to a multiple of this."""


class KernelWeights(ctypes.Structure):
    """`Weights` of kernels/linear.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("inputs", "padded", "outputs", "group", "bits")),
        ("packed", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class KernelColumns(ctypes.Structure):
    """`Columns` of kernels/linear.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("inputs", "outputs")),
        *((name, ctypes.c_void_p) for name in ("places", "kept", "weights")),
    )


class KernelRows(ctypes.Structure):
    """`Rows` of kernels/linear.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("values", "gates")),
        ("inputs", ctypes.c_int64),
        ("activation", ctypes.c_int32),
        ("left_out", ctypes.c_void_p),
        ("left_count", ctypes.c_int64),
        ("ratio", ctypes.c_float),
    )


def kernel_path() -> Path:
    """Return the path of the compiled kernel, which may not exist."""
    return Path(__file__).with_name("linear.abi3.so")


@cache
def load_kernel(path: Path) -> ctypes.CDLL:
    """Return the compiled kernel. Raises as `load_library`."""
    kernel = load_library(path, "the compiled kernel of linear layers", "linear", VERSION)
    pointer = ctypes.c_void_p
    number = ctypes.c_int64
    real = ctypes.c_float
    for name, result, arguments in (
        ("linear_set", ctypes.c_char_p, ()),
        ("linear_product", ctypes.c_int32, (pointer, pointer, number, pointer)),
        ("linear_quantise", ctypes.c_int32, (pointer, number, pointer, pointer)),
        ("linear_activate", None, (pointer, number, pointer)),
        ("linear_normalise", None, (pointer, number, number, pointer, real, pointer)),
        ("linear_outliers", number, (pointer, number, number, real, number)),
        ("linear_outlier_channels", None, (pointer,)),
        ("linear_add", None, (pointer, pointer, number, pointer, number, pointer)),
    ):
        function = getattr(kernel, name)
        function.argtypes = arguments
        function.restype = result
    return kernel


def kernel_or_none() -> ctypes.CDLL | None:
    """Return the compiled kernel, None if torch multiplies. Raises as `library_or_none`."""
    return library_or_none(load_kernel, kernel_path())


def quantise_rows(kernel: ctypes.CDLL, rows: Rows) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return rows as uint8, of which 128 is 0, and their scales float32 [N, 1]; None if a value stands out."""
    values, scales = torch.empty(rows.values.shape, dtype=torch.uint8), torch.empty(len(rows.values), 1)
    stands_out = kernel.linear_quantise(ctypes.byref(_passed(rows)), len(values), values.data_ptr(), scales.data_ptr())
    return None if stands_out else (values, scales)


def activate_rows(kernel: ctypes.CDLL, rows: Rows) -> torch.Tensor:
    """Return rows after their activation, float32 [N, inputs]: the numbers that a product quantises."""
    output = torch.empty_like(rows.values)
    kernel.linear_activate(ctypes.byref(_passed(rows)), len(output), output.data_ptr())
    return output


def normalise_rows(kernel: ctypes.CDLL, rows: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return rows divided by the root of their mean square, times a weight, in the shape of the rows.

    Args:
        kernel: The compiled kernel.
        rows: Contiguous rows float32 [..., width].
        weight: float32 [width].
        epsilon: What is added to the mean square.
    """
    output = torch.empty_like(rows)
    width = len(weight)
    address = weight.data_ptr()
    kernel.linear_normalise(rows.data_ptr(), rows.numel() // width, width, address, epsilon, output.data_ptr())
    return output


def _passed(rows: Rows) -> KernelRows:
    """Return rows as the kernel takes them."""
    gates = None if rows.gates is None else rows.gates.data_ptr()
    left_out = (None, 0) if rows.left_out is None else (rows.left_out.data_ptr(), len(rows.left_out))
    return KernelRows(rows.values.data_ptr(), gates, rows.values.shape[1], rows.activated, *left_out, rows.ratio)


def find_outliers(kernel: ctypes.CDLL, rows: torch.Tensor, ratio: float, most: int) -> torch.Tensor:
    """Return what `OutlierColumns.find` does.

    Args:
        kernel: The compiled kernel.
        rows: Contiguous rows float32 [N, inputs].
        ratio: Size from which on a value stands out, relative to its row.
        most: The largest number of channels.
    """
    count, inputs = rows.shape
    found = kernel.linear_outliers(rows.data_ptr(), count, inputs, ratio, most)
    channels = torch.empty(found, dtype=torch.long)
    kernel.linear_outlier_channels(channels.data_ptr())
    return channels


class PackedWeights:
    """Weights [outputs, inputs] in 4 or 8 bits, in the kernel's order, which depends on the processor."""

    def __init__(
        self, kernel: ctypes.CDLL, shape: tuple[int, int], bits: int, group: int | None, bias: torch.Tensor | None
    ) -> None:
        """`group`: inputs that share a scale, a multiple of ALIGNED_INPUTS; None for all. `bias` float32 [outputs]."""
        self._kernel = kernel
        self._block = kernel.linear_outputs()
        outputs, inputs = shape
        padded = -(-inputs // ALIGNED_INPUTS) * ALIGNED_INPUTS
        group = group or padded
        self._number = torch.bfloat16 if bits == 4 else torch.float32
        size = group * bits // 8 + 2 * self._number.itemsize
        self._packed = torch.zeros(-(-outputs // self._block), padded // group, size * self._block, dtype=torch.uint8)
        self._bias = bias
        bias_at = None if bias is None else bias.data_ptr()
        self._weights = KernelWeights(inputs, padded, outputs, group, bits, self._packed.data_ptr(), bias_at)
        self.address = ctypes.addressof(self._weights)
        """Where the kernel finds the weights."""

    def put(self, first: int, codes: torch.Tensor, scales: torch.Tensor, leasts: torch.Tensor) -> None:
        """Set the weights of N outputs to codes times scales plus least weights.

        Args:
            first: The first of the outputs, a multiple of 64.
            codes: uint8 [N, inputs].
            scales: Scale of each group of inputs, float32 [N, groups].
            leasts: Least weight of each group, float32 [N, groups].
        """
        weights = self._weights
        block = self._block
        codes_a_word = 32 // weights.bits
        rows = -len(codes) % block
        codes = torch.nn.functional.pad(codes, (0, weights.padded - weights.inputs, 0, rows))
        parts = codes.view(
            -1, block, weights.padded // weights.group, weights.group // codes_a_word, codes_a_word // 4, 4
        )
        parts = parts.permute(0, 2, 3, 1, 5, 4)
        if weights.bits == 8:
            joined = parts[..., 0]
        else:
            joined = parts[..., 0] | parts[..., 1] << 4
        place = self._packed[first // block : first // block + len(joined)]
        for number, values in enumerate((joined.flatten(2), *(self._numbers(part, rows) for part in (scales, leasts)))):
            if number == 0:
                begin = 0
            else:
                begin = place.shape[2] - (3 - number) * values.shape[2]
            place[..., begin : begin + values.shape[2]] = values

    def export_tensors(self) -> dict[str, torch.Tensor]:
        """Return `packed` uint8 [blocks, groups, bytes]."""
        return {"packed": self._packed}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Use the tensors of `export_tensors`, in place."""
        self._packed = tensors["packed"].view(self._packed.shape)
        self._weights.packed = self._packed.data_ptr()

    def product(self, rows: Rows) -> torch.Tensor | None:
        """Return rows times the weights, plus the bias: float32 [N, outputs]; None if a value stands out."""
        output = torch.empty(len(rows.values), self._weights.outputs)
        stands_out = self._kernel.linear_product(
            self.address, ctypes.byref(_passed(rows)), len(output), output.data_ptr()
        )
        return None if stands_out else output

    def _numbers(self, values: torch.Tensor, rows: int) -> torch.Tensor:
        padded = torch.nn.functional.pad(values.to(self._number), (0, 0, 0, rows))
        return padded.unflatten(0, (-1, self._block)).transpose(1, 2).contiguous().view(torch.uint8)
