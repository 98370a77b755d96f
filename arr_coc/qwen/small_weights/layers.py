"""Linear layers with weights of 8 or 4 bits, made from a checkpoint's own as the model is loaded to a CPU.

Decoding one token reads every weight once, so it takes as long as the weights are large. A prompt and a picture are
many rows: their products take as long as the processor multiplies. The compiled kernel (`kernel.py`) multiplies
both; without it, torch. Processor time of one thread on a busy AMD EPYC 9005 (Zen 5: VNNI, bfloat16), by turns, weights
[6144, 2048] of which the processor's caches hold a part, in ms:

========================================  =====  ======  ========
product                                   1 row  8 rows  256 rows
========================================  =====  ======  ========
4 bits, by the kernel                      0.33    0.55      10.4
8 bits, by the kernel                      0.35    0.52       8.8
8 bits, by FBGEMM (`FbgemmWeights`)        0.40    0.61      10.5
8 bits, by oneDNN (`VnniWeights`)             –       –       7.6
4 bits, by torch (`TorchInt4Weights`)      0.32    1.1       37
bfloat16                                   1.5     1.6       14
float32                                    2.3     3.2       27
========================================  =====  ======  ========

oneDNN is the faster one for many rows on processors with VNNI: the vision tower, which has no others, is packed for it.
With AMX (Xeon, 4th generation) the kernel multiplies 256 rows in 3.5 ms with 8 bits (15.0 by VNNI) and also 3.5 with 4
(18.9), oneDNN in 4.0. From 16 rows on, weights in 4 bits are then rounded again, to 8 with one scale for an output.

Everything else computes in float32. A linear layer in 8 bits is off by 1 to 2 % of its output's size (random weights),
one in 4 bits by 9 %. Therefore 4 bits are for the decoder's layers, which are most of a model; the vision tower and the
output head have 8. Embeddings stay as stored: only the rows of a prompt are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from arr_coc.errors import OptionError
from arr_coc.qwen.convert_dtype import MappedWeights, convert_weights, trim_heap
from arr_coc.qwen.cpu_precision import multiplies_bfloat16, multiplies_int8
from arr_coc.qwen.quantisation import SmallDtype
from arr_coc.qwen.small_weights.kernel import PackedWeights, activate_rows, kernel_or_none, quantise_rows
from arr_coc.qwen.small_weights.outliers import RATIO, OutlierColumns, checkpoint_weights
from arr_coc.qwen.small_weights.rows import Rows

GROUP = 64
"""Inputs that share a scale and a least weight in 4 bits, which add half a bit to each weight."""

CACHED_VALUES = 1 << 17
"""Values of rows that are quantised at once, so that what comes in between stays in a core's second cache."""

PART_OUTPUTS = 8192
"""Outputs whose weights are quantised at once. An output head has many more, and memory would hold it four times."""

StoredWeights = Mapping[str, torch.Tensor]
"""Tensors of a `SmallLinear` by name, of which it can be made again."""

STORED_NAMES = ("bias", "packed", "codes", "scales", "scales_zeros")
"""Names of these tensors."""


class SmallLinear(nn.Module):
    """Linear layer whose weights are integers, for rows [..., in_features] in floating point, without gradients."""

    def __init__(self, linear: nn.Linear, tensors: StoredWeights | None = None) -> None:
        """`tensors`: result of `export_tensors`, used in place if possible; None: made from the layer's weights."""
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias: torch.Tensor | None = None
        if linear.bias is not None:
            if tensors is None:
                self.bias = linear.bias.detach().float()
            else:
                self.bias = tensors["bias"]
        self._kernel = kernel_or_none()
        self._stood_out = False
        self._weights = self._empty()
        packed = self._weights if isinstance(self._weights, PackedWeights) else None
        self.outliers = OutlierColumns((self.out_features, self.in_features), self._kernel, packed or self._expanded)
        if tensors is not None:
            self._weights.restore(tensors)
            return
        for first in range(0, self.out_features, PART_OUTPUTS):
            self._weights.put(first, *self._quantised(linear.weight.detach()[first : first + PART_OUTPUTS].float()))

    @property
    def weight_count(self) -> int:
        """Number of weights, as `arr_coc.qwen.flops` counts them."""
        return self.in_features * self.out_features

    @property
    def attention_dtype(self) -> torch.dtype:
        """Dtype of attention among rows that the layer gives: bfloat16 is off by 0.4 %, its own products by more than
        1 %, and attention among 952 rows takes half as long."""
        return torch.bfloat16 if multiplies_bfloat16() else torch.float32

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the layer's output [..., out_features], float32."""
        if torch.is_grad_enabled() and input.requires_grad:
            raise OptionError("a model in int8 or int4 cannot be trained; load it in float32 or bfloat16")
        return self._multiplied(input, Rows(self._rows_of(input), ratio=RATIO))

    def after_activation(self, input: torch.Tensor, gates: torch.Tensor | None = None) -> torch.Tensor:
        """Return the layer's output for the activation of its input, which is computed as rows are quantised.

        Args:
            input: [..., in_features], after which the GELU by tanh comes; with gates, what they are multiplied with.
            gates: [..., in_features], of which the SiLU is taken.
        """
        rows = Rows(self._rows_of(input), True, None if gates is None else self._rows_of(gates), ratio=RATIO)
        return self._multiplied(input, rows)

    def export_tensors(self) -> dict[str, torch.Tensor]:
        """Return its tensors as the constructor takes them."""
        return self._weights.export_tensors() | ({} if self.bias is None else {"bias": self.bias})

    def _rows_of(self, input: torch.Tensor) -> torch.Tensor:
        return input.float().reshape(-1, self.in_features).contiguous()

    def _multiplied(self, input: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Return the output for the rows of an input, in the input's shape."""
        output: torch.Tensor | None = None
        if not len(rows.values):
            output = rows.values.new_empty(0, self.out_features)
        elif not self._stood_out:
            output = self._weights.product(rows)
        if output is None:
            # Some channels stand out, or did the last time: then a product that stops at them is spared.
            values = self._activated(rows)
            channels = self.outliers.find(values)
            self._stood_out = len(channels) > 0
            output = self._weights.product(Rows(values).without(channels))
            assert output is not None
            if len(channels):
                self.outliers.add(values, channels, output)
        return output.view(*input.shape[:-1], self.out_features)

    def _activated(self, rows: Rows) -> torch.Tensor:
        """Return the rows after their activation, in the same numbers as a product computes."""
        if rows.activated and self._kernel is not None:
            return activate_rows(self._kernel, rows)
        return rows.computed().values

    def _expanded(self, channels: torch.Tensor) -> torch.Tensor:
        """Return the weights of some inputs, int64 [K], as float32 [K, out_features]."""
        rows = torch.zeros(len(channels), self.in_features)
        rows[torch.arange(len(channels)), channels] = 1
        columns = self._weights.product(Rows(rows))
        assert columns is not None
        return columns if self.bias is None else columns - self.bias

    def _empty(self) -> SmallWeights:
        """Return the packed weights before they are set."""
        raise NotImplementedError

    def _quantised(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return codes uint8 [N, in_features] of weights float32, and scales and least weights [N, groups]."""
        raise NotImplementedError


class Int8Linear(SmallLinear):
    """Weights in 8 bits with a scale for each output, and rows in 8 bits with a scale each (LLM.int8(),
    arXiv:2208.07339)."""

    def __init__(self, linear: nn.Linear, tensors: StoredWeights | None = None, *, many_rows: bool = False) -> None:
        """`many_rows`: never are there few, as in a vision tower."""
        self._many_rows = many_rows
        super().__init__(linear, tensors)

    def _empty(self) -> SmallWeights:
        kernel = self._kernel
        if self._many_rows and multiplies_int8():
            return TorchInt8Weights(VnniWeights, self.bias)
        if kernel is None or not kernel.linear_takes_8_bits():
            return TorchInt8Weights(FbgemmWeights, self.bias)
        return PackedWeights(kernel, (self.out_features, self.in_features), 8, None, self.bias)

    def _quantised(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scales = (weight.abs().amax(dim=1, keepdim=True) / 127).clamp_(min=torch.finfo(torch.float32).tiny)
        return (weight / scales).round_().add_(128).to(torch.uint8), scales, -128 * scales


class Int4Linear(SmallLinear):
    """Weights in 4 bits, with a scale and a least weight in bfloat16 for GROUP inputs of an output. The compiled kernel
    multiplies rows in 8 bits, with a scale for GROUP inputs of each."""

    @staticmethod
    def suits(linear: nn.Linear) -> bool:
        """Return True if the kernels take a layer of this shape."""
        return linear.in_features % GROUP == 0 and linear.out_features % 64 == 0

    def _empty(self) -> SmallWeights:
        if self._kernel is None:
            return TorchInt4Weights((self.out_features, self.in_features), self.bias)
        return PackedWeights(self._kernel, (self.out_features, self.in_features), 4, GROUP, self.bias)

    def _quantised(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        groups = weight.unflatten(1, (-1, GROUP))
        least, most = groups.aminmax(dim=2)
        scales = ((most - least) / 15).clamp_(min=torch.finfo(torch.float32).tiny).bfloat16().float()
        least = least.bfloat16().float()
        codes = (groups - least[..., None]).div_(scales[..., None]).round_().clamp_(0, 15)
        return codes.flatten(1).to(torch.uint8), scales, least


class TorchInt8Weights:
    """Weights in 8 bits that torch multiplies, packed by oneDNN or by FBGEMM."""

    def __init__(self, kind: type[VnniWeights | FbgemmWeights], bias: torch.Tensor | None) -> None:
        self._kind = kind
        self._bias = bias
        self._parts: list[VnniWeights | FbgemmWeights] = []

    def put(self, first: int, codes: torch.Tensor, scales: torch.Tensor, leasts: torch.Tensor) -> None:
        """As `PackedWeights`, of outputs in order; `leasts` are -128 times the scales."""
        self._parts.append(self._kind((codes ^ 128).view(torch.int8), scales[:, 0]))

    def export_tensors(self) -> dict[str, torch.Tensor]:
        """Return `codes` int8 [outputs, inputs] and `scales` float32 [outputs], which no processor packed."""
        codes, scales = zip(*(part.unpack() for part in self._parts), strict=True)
        return {"codes": torch.cat(codes), "scales": torch.cat(scales)}

    def restore(self, tensors: StoredWeights) -> None:
        """Pack the tensors of `export_tensors`."""
        parts = zip(*(tensors[name].split(PART_OUTPUTS) for name in ("codes", "scales")), strict=True)
        self._parts = [self._kind(codes, scales) for codes, scales in parts]

    def product(self, rows: Rows) -> torch.Tensor | None:
        """As `PackedWeights`."""
        quantised = self._kind.values(rows)
        if quantised is None:
            return None
        values, scales = quantised
        products = [part.product(values) for part in self._parts]
        if len(products) == 1:
            output = products[0]
        else:
            output = torch.cat(products, dim=1)
        if self._bias is None:
            return output.mul_(scales)
        return torch.addcmul(self._bias, output, scales, out=output)


def row_sizes(rows: torch.Tensor) -> torch.Tensor:
    """Return the largest size [N, 1] of a number in each row [N, inputs], above 0."""
    sizes = torch.maximum(rows.amax(dim=1, keepdim=True), -rows.amin(dim=1, keepdim=True))
    return sizes.clamp_(min=128 * torch.finfo(torch.float32).tiny)


class VnniWeights:
    """Codes int8 [outputs, inputs] with scales float32 [outputs], packed by oneDNN for processors with VNNI."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor) -> None:
        self._packed = torch.ops.onednn.qlinear_prepack(codes, None)
        self._scales = scales
        self._zeros = torch.zeros(len(codes), dtype=torch.long)

    @staticmethod
    def values(rows: Rows) -> tuple[torch.Tensor, torch.Tensor] | None:
        """As `quantise_rows`."""
        if (kernel := kernel_or_none()) is not None:
            return quantise_rows(kernel, rows)
        zeroed = rows.zeroed()
        if zeroed is None:
            return None
        scales = row_sizes(zeroed) / 127
        factors = 1 / scales
        values = torch.empty(zeroed.shape, dtype=torch.uint8)
        count = max(1, CACHED_VALUES // zeroed.shape[1])
        for begin in range(0, len(zeroed), count):
            part = slice(begin, begin + count)
            values[part] = (zeroed[part] * factors[part]).add_(128).round_()
        return values, scales

    def product(self, values: torch.Tensor) -> torch.Tensor:
        """Return rows that were made `values` times the weights, float32 [rows, outputs], but for the rows' scales."""
        product: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            *(values, 1.0, 128, self._packed, self._scales, self._zeros, None),
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        return product

    def unpack(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the codes int8 [outputs, inputs] and the scales float32 [outputs]."""
        return self._packed.to_dense().t().contiguous(), self._scales


class FbgemmWeights:
    """The same packed by torch for all processors. Without VNNI, sums of two products would not fit 16 bits, and rows
    have 7."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor) -> None:
        self._reduce_range = not multiplies_int8()
        zeros = torch.zeros(len(codes), dtype=torch.long)
        quantised = torch._make_per_channel_quantized_tensor(codes, scales, zeros, 0)
        self._packed = torch.ops.quantized.linear_prepack(quantised, None)

    @staticmethod
    def values(rows: Rows) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return rows that all reach to 1 or -1, as the kernel, which has one scale for all rows, quantises them, and
        the rows' scales; else as `quantise_rows`."""
        zeroed = rows.zeroed()
        if zeroed is None:
            return None
        scales = row_sizes(zeroed)
        return zeroed / scales, scales

    def product(self, values: torch.Tensor) -> torch.Tensor:
        """As `VnniWeights`."""
        product: torch.Tensor = torch.ops.quantized.linear_dynamic(values, self._packed, self._reduce_range)
        return product

    def unpack(self) -> tuple[torch.Tensor, torch.Tensor]:
        """As `VnniWeights`."""
        weights = torch.ops.quantized.linear_unpack(self._packed)[0]
        return weights.int_repr(), weights.q_per_channel_scales().float()


class TorchInt4Weights:
    """Weights in 4 bits that torch multiplies, by rows in bfloat16."""

    def __init__(self, shape: tuple[int, int], bias: torch.Tensor | None) -> None:
        outputs, inputs = shape
        self._packed = torch.empty(outputs, inputs // 2, dtype=torch.uint8)
        self._scales_zeros = torch.empty(inputs // GROUP, outputs, 2, dtype=torch.bfloat16)
        self._bias = bias

    def put(self, first: int, codes: torch.Tensor, scales: torch.Tensor, leasts: torch.Tensor) -> None:
        """As `PackedWeights`."""
        part = slice(first, first + len(codes))
        self._packed[part] = torch._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
        self._scales_zeros[:, part] = torch.stack([scales.t(), (leasts + 8 * scales).t()], dim=-1)

    def export_tensors(self) -> dict[str, torch.Tensor]:
        """As `PackedWeights`."""
        return {"packed": self._packed, "scales_zeros": self._scales_zeros}

    def restore(self, tensors: StoredWeights) -> None:
        """As `PackedWeights`."""
        self._packed = tensors["packed"]
        self._scales_zeros = tensors["scales_zeros"]

    def product(self, rows: Rows) -> torch.Tensor | None:
        """As `PackedWeights`."""
        zeroed = rows.zeroed()
        if zeroed is None:
            return None
        product = torch._weight_int4pack_mm_for_cpu(zeroed.bfloat16(), self._packed, GROUP, self._scales_zeros)
        output: torch.Tensor = product.float()
        if self._bias is None:
            return output
        return output.add_(self._bias)


SmallWeights: TypeAlias = PackedWeights | TorchInt8Weights | TorchInt4Weights
"""Packed weights [outputs, inputs], set part by part by `put` or whole by `restore`, that multiply rows."""


def packing_format() -> list[Any]:
    """Return what the form of stored weights depends on: the compiled kernel, or torch's, and the processor."""
    kernel = kernel_or_none()
    if kernel is None:
        return [torch.__version__, torch.backends.cpu.get_cpu_capability()]
    return [kernel.linear_version(), kernel.linear_outputs(), kernel.linear_takes_8_bits(), multiplies_int8()]


class FloatEmbedding(nn.Embedding):
    """Embeddings in half precision whose rows are given in float32."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """As `nn.Embedding`, float32."""
        return super().forward(input).float()


def shrink_weights(model: Any, dtype: SmallDtype, check: Callable[[str, torch.Tensor], None]) -> None:
    """Replace the linear layers of a model that was just loaded, the largest first, so that memory never holds both
    forms of all. `check` sees each weight before."""
    mapped = MappedWeights()
    embeddings = model.get_input_embeddings()
    linears = linear_layers(model)
    for name, weight in model.named_parameters():
        if name.removesuffix(".weight") not in linears:
            check(name, weight)
            mapped.release(weight)
    for name in sorted(linears, key=lambda name: -linears[name].weight.numel()):
        linear = linears.pop(name)
        check(f"{name}.weight", linear.weight)
        model.set_submodule(name, small_linear(name, linear, dtype))
        mapped.release(linear.weight)
        trim_heap()
    use_float_rows(embeddings)
    convert_weights(model, torch.float32, exception=embeddings.weight)


def find_sources(model: nn.Module, folder: Path) -> None:
    """Let the layers of a small model read the weights of channels that stand out from the model's folder."""
    layers = {f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, SmallLinear)}
    for name, weight in checkpoint_weights(folder, layers).items():
        layers[name].outliers.source = weight


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the layers of a model that get small weights, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def small_linear(name: str, linear: nn.Linear, dtype: SmallDtype, tensors: StoredWeights | None = None) -> SmallLinear:
    """Return the small layer that replaces a linear layer.

    Args:
        name: Name of the layer in the model, which decides on the bits of its weights.
        linear: The layer.
        dtype: Dtype of the model's small weights.
        tensors: Result of `SmallLinear.export_tensors`; None: made from the layer's weights.
    """
    if dtype == "int4" and "language_model.layers." in name and Int4Linear.suits(linear):
        return Int4Linear(linear, tensors)
    return Int8Linear(linear, tensors, many_rows="visual." in name)


def use_float_rows(embeddings: nn.Embedding) -> None:
    """Let embeddings in half precision give rows in float32."""
    if embeddings.weight.dtype != torch.float32:
        embeddings.__class__ = FloatEmbedding
