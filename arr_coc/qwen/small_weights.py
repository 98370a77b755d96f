"""Linear layers with weights of 8 or 4 bits, made from a checkpoint's own as the model is loaded to a CPU.

Decoding one token reads every weight once, so it takes as long as the weights are large. A prompt and a picture are
many rows: their products take as long as the processor multiplies. What computes in which case, measured in processor
time of one thread on an AMD EPYC with AVX2 and no VNNI, weights [6144, 2048], in ms:

========================================  =====  ======  =======  ========
product                                   1 row  8 rows  64 rows  256 rows
========================================  =====  ======  =======  ========
float32                                     2.9    17.9     38.4      92.2
bfloat16, which this processor emulates     3.0    20.7       –         –
8 bits, rows in 8 bits (`FbgemmWeights`)    0.5     1.5     11.8      47.1
`_weight_int8pack_mm`                       2.1     7.0     52.3        –
4 bits, packed (`Int4Linear`)               2.1     5.8     41.3        –
4 bits, expanded to float32                  –       –      42.2       106
========================================  =====  ======  =======  ========

The same on an AMD EPYC 9005 (Zen 5), which has VNNI and multiplies bfloat16:

========================================  =====  ======  =======  ========
product                                   1 row  8 rows  64 rows  256 rows
========================================  =====  ======  =======  ========
float32, by MKL and by oneDNN               2.3     3.2      8.8      27.3
bfloat16                                    1.5     1.6      4.4      14.0
8 bits, by FBGEMM (`FbgemmWeights`)         0.4     0.5      2.3       8.7
8 bits, by oneDNN (`VnniWeights`)           0.4     0.5      2.2       7.3
`_weight_int8pack_mm`                       0.8     1.7      9.7        –
4 bits, packed (`Int4Linear`)               0.4     1.2      9.4      37.6
4 bits, expanded to bfloat16                 –       –     11.4      23.1
========================================  =====  ======  =======  ========

oneDNN takes 1.1 to 1.3 times as long as FBGEMM for a single row, and 0.65 to 0.85 of it for 992. The vision tower,
which always has many rows, is packed for oneDNN; the decoder for FBGEMM.

Everything else computes in float32. A linear layer in 8 bits is off by 1 to 2 % of its output's size (random weights),
one in 4 bits by 9 %. Therefore 4 bits are for the decoder's layers, which are most of a model; the vision tower and the
output head have 8. Embeddings stay as stored: only the rows of a prompt are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from arr_coc.errors import OptionError
from arr_coc.qwen.convert_dtype import MappedWeights, convert_weights, trim_heap
from arr_coc.qwen.cpu_precision import multiplies_bfloat16, multiplies_int8
from arr_coc.qwen.quantisation import SmallDtype

GROUP = 64
"""Inputs that share a scale and a zero in 4 bits, which add half a bit to each weight."""

EXPANDED_ROWS = 64
"""From so many rows on, weights of 4 bits are expanded for a product in floating point."""

EXPANDED_OUTPUTS = 512
"""Outputs whose weights are expanded at once, so that they stay in the processor's cache."""

CACHED_VALUES = 1 << 17
"""Values of rows that are quantised at once, so that what comes in between stays in a core's second cache."""

PART_OUTPUTS = 8192
"""Outputs whose weights are quantised at once. An output head has many more, and memory would hold it four times."""

StoredWeights = Mapping[str, torch.Tensor]
"""Tensors of a `SmallLinear` by name, of which it can be made again."""

STORED_NAMES = ("codes", "scales", "packed", "scales_zeros")
"""Names of these tensors: the first two of 8 bits, the others of 4."""


class SmallLinear(nn.Module):
    """Linear layer whose weights are integers, for rows [..., in_features] in floating point, without gradients."""

    bias: torch.Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().float())

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the layer's output [..., out_features], float32."""
        if torch.is_grad_enabled() and input.requires_grad:
            raise OptionError("a model in int8 or int4 cannot be trained; load it in float32 or bfloat16")
        rows = input.float().reshape(-1, self.in_features)
        output = self.product(rows) if len(rows) else rows.new_empty(0, self.out_features)
        if self.bias is not None:
            output += self.bias
        return output.view(*input.shape[:-1], self.out_features)

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows [N, in_features] times the weights [N, out_features], float32."""
        raise NotImplementedError

    def expanded(self) -> torch.Tensor:
        """Return the weights [out_features, in_features] that its integers stand for, float32."""
        raise NotImplementedError

    def stored(self) -> dict[str, torch.Tensor]:
        """Return its weights as the constructor takes them, without the bias."""
        raise NotImplementedError


class Int8Linear(SmallLinear):
    """Weights in 8 bits with a scale for each output, and rows in 8 bits with a scale each (LLM.int8(),
    arXiv:2208.07339, without its outliers)."""

    def __init__(self, linear: nn.Linear, stored: StoredWeights | None = None, *, many_rows: bool = False) -> None:
        """`stored`: `codes` int8 [outputs, inputs] and `scales` float32 [outputs]; None: from the layer's weights.
        `many_rows`: never are there few, as in a vision tower."""
        super().__init__(linear)
        pack = VnniWeights if many_rows and multiplies_int8() else FbgemmWeights
        if stored is None:
            parts = _quantised(linear.weight.detach())
        else:
            parts = zip(*(stored[name].split(PART_OUTPUTS) for name in ("codes", "scales")), strict=True)
        self._parts: list[VnniWeights | FbgemmWeights] = [pack(codes, scales) for codes, scales in parts]

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        scales = torch.maximum(rows.amax(dim=1, keepdim=True), -rows.amin(dim=1, keepdim=True))
        scales = scales.clamp_(min=torch.finfo(torch.float32).tiny)
        values = self._parts[0].values(rows, scales)
        made = [part.product(values) for part in self._parts]
        return (made[0] if len(made) == 1 else torch.cat(made, dim=1)).mul_(scales)

    def expanded(self) -> torch.Tensor:
        return torch.cat([codes * scales[:, None] for codes, scales in self._unpacked()])

    def stored(self) -> dict[str, torch.Tensor]:
        codes, scales = zip(*self._unpacked(), strict=True)
        return {"codes": torch.cat(codes), "scales": torch.cat(scales)}

    def _unpacked(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return (part.unpacked() for part in self._parts)


def _quantised(weights: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield codes and scales of parts of the outputs."""
    for weight in weights.split(PART_OUTPUTS):
        scales = (weight.float().abs().amax(dim=1) / 127).clamp_(min=torch.finfo(torch.float32).tiny)
        yield (weight.float() / scales[:, None]).round_().to(torch.int8), scales


class VnniWeights:
    """Codes int8 [outputs, inputs] with scales float32 [outputs], packed by oneDNN for processors with VNNI."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor) -> None:
        self._packed = torch.ops.onednn.qlinear_prepack(codes, None)
        self._scales = scales
        self._zeros = torch.zeros(len(codes), dtype=torch.long)

    @staticmethod
    def values(rows: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """Return rows in 8 bits, uint8, of which 128 is 0 and 255 a row's scale."""
        factors, values = 127 / scales, torch.empty(rows.shape, dtype=torch.uint8)
        count = max(1, CACHED_VALUES // rows.shape[1])
        for begin in range(0, len(rows), count):
            part = slice(begin, begin + count)
            values[part] = (rows[part] * factors[part]).add_(128).round_()
        return values

    def product(self, values: torch.Tensor) -> torch.Tensor:
        """Return rows that were made `values` times the weights, float32 [rows, outputs], but for the rows' scales."""
        product: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            *(values, 1 / 127, 128, self._packed, self._scales, self._zeros, None),
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        return product

    def unpacked(self) -> tuple[torch.Tensor, torch.Tensor]:
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
    def values(rows: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """Return rows that all reach to 1 or -1: the kernel, which has one scale for all rows, quantises them."""
        return rows / scales

    def product(self, values: torch.Tensor) -> torch.Tensor:
        """As `VnniWeights`."""
        product: torch.Tensor = torch.ops.quantized.linear_dynamic(values, self._packed, self._reduce_range)
        return product

    def unpacked(self) -> tuple[torch.Tensor, torch.Tensor]:
        """As `VnniWeights`."""
        weights = torch.ops.quantized.linear_unpack(self._packed)[0]
        return weights.int_repr(), weights.q_per_channel_scales().float()


class Int4Linear(SmallLinear):
    """Weights in 4 bits, with a scale and a zero for GROUP inputs of an output. Few rows are multiplied by the packed
    weights, in bfloat16; for many these are expanded, block by block, to what the processor multiplies fast."""

    def __init__(self, linear: nn.Linear, stored: StoredWeights | None = None) -> None:
        """`stored`: `packed` uint8 [outputs, inputs / 2] and `scales_zeros` bfloat16 [groups, outputs, 2], used as they
        are; None: from the layer's weights."""
        super().__init__(linear)
        if stored is not None:
            self._packed, self._scales_zeros = stored["packed"], stored["scales_zeros"]
            return
        self._packed = torch.empty(self.out_features, self.in_features // 2, dtype=torch.uint8)
        self._scales_zeros = torch.empty(self.in_features // GROUP, self.out_features, 2, dtype=torch.bfloat16)
        for first in range(0, self.out_features, PART_OUTPUTS):
            part = slice(first, first + PART_OUTPUTS)
            groups = linear.weight.detach()[part].float().unflatten(1, (-1, GROUP))
            least, most = groups.aminmax(dim=2)
            scales = ((most - least) / 15).clamp_(min=torch.finfo(torch.float32).tiny).bfloat16()
            zeros = (least + 8 * scales.float()).bfloat16()
            codes = (groups - zeros.float()[..., None]).div_(scales.float()[..., None]).round_().add_(8).clamp_(0, 15)
            self._packed[part] = torch._convert_weight_to_int4pack_for_cpu(codes.flatten(1).int(), 1)
            self._scales_zeros[:, part] = torch.stack([scales.t(), zeros.t()], dim=-1)

    @staticmethod
    def suits(linear: nn.Linear) -> bool:
        """Return True if the kernel takes a layer of this shape."""
        return linear.in_features % GROUP == 0 and linear.out_features % 64 == 0

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        if len(rows) < EXPANDED_ROWS or packed_outputs() is None:
            few: torch.Tensor = torch._weight_int4pack_mm_for_cpu(
                rows.bfloat16(), self._packed, GROUP, self._scales_zeros
            )
            return few.float()
        # Zeros are the same for a group of inputs, so they are multiplied by the group's sum.
        sums = rows.unflatten(1, (-1, GROUP)).sum(dim=2)
        output = sums @ self._scales_zeros[..., 1].float()
        values = rows.to(torch.bfloat16 if multiplies_bfloat16() else torch.float32)
        for first in range(0, self.out_features, EXPANDED_OUTPUTS):
            block = self._scaled_codes(first, min(EXPANDED_OUTPUTS, self.out_features - first), values.dtype)
            output[:, first : first + len(block)] += F.linear(values, block)
        return output

    def _scaled_codes(self, first: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Weights of `count` outputs [count, in_features] without their zeros. A byte holds two outputs of one input:
        number j of a block of B outputs, and j + B / 2."""
        half = (packed_outputs() or 2) // 2
        packed = self._packed.flatten()[first * self.in_features // 2 : (first + count) * self.in_features // 2]
        pairs = packed.view(-1, self.in_features, half).transpose(1, 2).contiguous()
        block = torch.empty(len(pairs), 2, half, self.in_features, dtype=dtype)
        block[:, 0] = (pairs & 15).sub_(8).view(torch.int8)
        block[:, 1] = (pairs >> 4).sub_(8).view(torch.int8)
        scales = self._scales_zeros[:, first : first + count, 0].t().to(dtype)
        block.view(count, -1, GROUP).mul_(scales[..., None])
        return block.view(count, self.in_features)

    def expanded(self) -> torch.Tensor:
        zeros = self._scales_zeros[..., 1].t().float()
        codes = self._scaled_codes(0, self.out_features, torch.float32)
        return (codes.unflatten(1, (-1, GROUP)) + zeros[..., None]).flatten(1)

    def stored(self) -> dict[str, torch.Tensor]:
        return {"packed": self._packed, "scales_zeros": self._scales_zeros}


@cache
def packed_outputs() -> int | None:
    """Return how many outputs torch packs into a block of 4-bit weights: that depends on the processor's vectors and is
    documented nowhere. None for an order that `Int4Linear` does not know; then the packed kernel multiplies all rows.
    """
    codes = (torch.arange(64 * 64) * 7 // 3 % 16).view(64, 64)
    packed = torch._convert_weight_to_int4pack_for_cpu(codes.int(), 1).flatten()
    for outputs in (64, 32):
        pairs = codes.view(-1, 2, outputs // 2, 64)
        if torch.equal(packed, (pairs[:, 0] + 16 * pairs[:, 1]).transpose(1, 2).flatten().to(torch.uint8)):
            return outputs
    return None


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
    convert_weights(model, torch.float32, kept=embeddings.weight)


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the layers of a model that get small weights, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def small_linear(name: str, linear: nn.Linear, dtype: SmallDtype, stored: StoredWeights | None = None) -> SmallLinear:
    """Return what takes the place of the layer `name`, from its weights, or from weights that were `stored`."""
    if dtype == "int4" and "language_model.layers." in name and Int4Linear.suits(linear):
        return Int4Linear(linear, stored)
    return Int8Linear(linear, stored, many_rows="visual." in name)


def use_float_rows(embeddings: nn.Embedding) -> None:
    """Let embeddings in half precision give rows in float32."""
    if embeddings.weight.dtype != torch.float32:
        embeddings.__class__ = FloatEmbedding
