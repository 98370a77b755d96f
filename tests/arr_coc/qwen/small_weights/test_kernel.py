"""The compiled kernel of linear layers: its products are the reference's, in every instruction set that runs here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from arr_coc.qwen.small_weights.kernel import (
    ALIGNED_INPUTS,
    PackedWeights,
    activate_rows,
    kernel_or_none,
    kernel_path,
    load_kernel,
    normalise_rows,
    quantise_rows,
)
from arr_coc.qwen.small_weights.outliers import RATIO, OutlierColumns
from arr_coc.qwen.small_weights.rows import Rows
from tests.support.stores import require

ROOT = Path(__file__).resolve().parents[4]
SETS = {"amx": "amx_int8", "v4": "avx512_vnni", "v3_vnni": "avx_vnni", "v3": "avx2", "plain": ""}
"""Variants of the kernel in its order, with the flag of /proc/cpuinfo that each needs, if any."""
ROWS = (1, 2, 7, 12, 29, 250)
WIDENED_ROWS = 16


@pytest.fixture(scope="module", params=["chosen", *SETS])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernel, as it is built and with one instruction set after the other."""
    require("compiled")
    if request.param == "chosen":
        return kernel_path()
    flag = SETS[request.param]
    if flag and flag not in Path("/proc/cpuinfo").read_text("utf-8").split():
        pytest.skip(f"the processor has no {flag}")
    path = tmp_path_factory.mktemp("kernel") / "linear.so"
    source = (ROOT / "kernels" / "linear.cpp").read_text("utf-8")
    forced = source.replace("= choose();", f"= variants[{list(SETS).index(request.param)}];")
    assert forced != source
    command = [shutil.which("g++") or "c++", "-O1", "-std=c++17", "-Wno-psabi", "-fopenmp", "-fno-trapping-math"]
    command += ["-fPIC", "-x", "c++", "-", "-c", "-I", str(ROOT / "kernels"), "-o", str(path.with_suffix(".o"))]
    subprocess.run(command, input=forced, text=True, check=True)
    subprocess.run([command[0], "-shared", str(path.with_suffix(".o")), "-o", str(path)], check=True)
    return path


def in_8_bits(rows: torch.Tensor, groups: int) -> torch.Tensor:
    """Rows as the kernel quantises them."""
    parts = rows.unflatten(1, (groups, -1))
    most = parts.abs().amax(dim=2, keepdim=True)
    return ((parts * (127 / most)).round() * (most / 127)).flatten(1)


def weights_of(
    library: Path, bits: int, shape: tuple[int, int], bias: torch.Tensor | None
) -> tuple[PackedWeights, torch.Tensor]:
    """Random packed weights, and the same in double precision."""
    outputs, inputs = shape
    groups = inputs // 64 if bits == 4 else 1
    codes = torch.randint(0, 2**bits, shape, dtype=torch.uint8)
    scales, leasts = torch.rand(outputs, groups).bfloat16().float(), torch.randn(outputs, groups).bfloat16().float()
    packed = PackedWeights(load_kernel(library), shape, bits, 64 if bits == 4 else None, bias)
    for first in range(0, outputs, 64):
        part = slice(first, first + 64)
        packed.put(first, codes[part], scales[part], leasts[part])
    expanded = codes.double().unflatten(1, (groups, -1)) * scales.double()[..., None] + leasts.double()[..., None]
    return packed, expanded.flatten(1)


def is_widened(library: Path, bits: int, count: int) -> bool:
    """True if a product of so many rows gives a row, and an output's weights in 4 bits, one scale for all groups."""
    return bits == 4 and count >= WIDENED_ROWS and load_kernel(library).linear_set() == b"AMX"


@pytest.mark.parametrize(("bits", "shape"), [(4, (64, 128)), (4, (192, 64)), (8, (128, 192)), (8, (75, 100))])
def test_a_product_is_the_references(library: Path, bits: int, shape: tuple[int, int]) -> None:
    if bits == 8 and not load_kernel(library).linear_takes_8_bits():
        pytest.skip("this instruction set has no exact products of 8 bits")
    torch.manual_seed(0)
    for bias in (None, torch.randn(shape[0])):
        packed, expanded = weights_of(library, bits, shape, bias)
        for count in ROWS:
            rows = torch.randn(count, shape[1])
            widened = is_widened(library, bits, count)
            expected = in_8_bits(rows, shape[1] // 64 if bits == 4 and not widened else 1).double() @ expanded.t()
            if bias is not None:
                expected += bias
            product = packed.product(Rows(rows))
            # A value halfway between two may be rounded to either; weights that are widened are rounded to 8 bits.
            assert float((product - expected).norm() / expected.norm()) < (6e-3 if widened else 1e-4)
            if not widened:
                assert float((product - expected).abs().median() / expected.abs().median()) < 1e-6


@pytest.mark.parametrize(("bits", "shape"), [(4, (192, 128)), (8, (128, 192)), (8, (75, 100))])
def test_channels_that_stand_out_are_exact(library: Path, bits: int, shape: tuple[int, int]) -> None:
    if bits == 8 and not load_kernel(library).linear_takes_8_bits():
        pytest.skip("this instruction set has no exact products of 8 bits")
    torch.manual_seed(0)
    packed, expanded = weights_of(library, bits, shape, torch.randn(shape[0]))
    columns = OutlierColumns(shape, load_kernel(library), packed)
    for count in ROWS:
        rows = torch.randn(count, shape[1])
        rows[0, [9, 63, 70]] = torch.tensor([300.0, -2000.0, 99.0])
        assert packed.product(Rows(rows, ratio=RATIO)) is None
        assert quantise_rows(load_kernel(library), Rows(rows, ratio=RATIO)) is None
        channels = columns.find(rows)
        assert channels.tolist() == [9, 63, 70]
        apart = packed.product(Rows(rows).without(channels))
        again = packed.product(Rows(rows.index_fill(1, channels, 0)))
        quantised = quantise_rows(load_kernel(library), Rows(rows).without(channels))
        assert apart is not None
        assert again is not None
        assert quantised is not None
        assert torch.equal(apart, again)
        values, scales = quantised
        ordinary = in_8_bits(rows.index_fill(1, channels, 0), 1)
        torch.testing.assert_close((values.float() - 128) * scales, ordinary, atol=0.04, rtol=0)
        expected = apart.double() + rows.double()[:, channels] @ expanded.t()[channels]
        columns.add(rows, channels, apart)
        torch.testing.assert_close(apart.double(), expected, atol=1e-4, rtol=1e-5)


def test_rows_of_any_size_and_without_a_number(library: Path) -> None:
    packed, expanded = weights_of(library, 4, (64, 64), None)
    rows = torch.randn(6, 64) * torch.tensor([[1e-38], [1e-20], [1.0], [1e20], [1.0], [1.0]])
    rows[4, 3], rows[5, 60] = float("nan"), float("inf")
    for repeated in (1, 4):
        product = packed.product(Rows(rows.repeat(repeated, 1)))
        most = 2e-2 if is_widened(library, 4, len(product)) else 1e-5
        assert product[0].abs().max() < 1e-30
        for row in (1, 2, 3):
            expected = in_8_bits(rows[row : row + 1], 1).double() @ expanded.t()
            assert float((product[row] - expected).norm() / expected.norm()) < most
        assert not product[4:6].isfinite().any()


def test_threads_share_the_outputs() -> None:
    require("compiled")
    kernel = kernel_or_none()
    assert kernel is not None
    packed, _ = weights_of(kernel_path(), 4, (512, 4 * ALIGNED_INPUTS), None)
    rows, threads = torch.randn(9, 4 * ALIGNED_INPUTS), torch.get_num_threads()
    torch.set_num_threads(1)
    by_one = packed.product(Rows(rows))
    torch.set_num_threads(2)
    by_two = packed.product(Rows(rows))
    torch.set_num_threads(threads)
    assert torch.equal(by_one, by_two)


@pytest.mark.parametrize(("bits", "shape"), [(4, (64, 128)), (8, (128, 192)), (8, (75, 100))])
def test_rows_are_multiplied_after_their_activation(library: Path, bits: int, shape: tuple[int, int]) -> None:
    if bits == 8 and not load_kernel(library).linear_takes_8_bits():
        pytest.skip("this instruction set has no exact products of 8 bits")
    torch.manual_seed(0)
    packed, _ = weights_of(library, bits, shape, None)
    for count in ROWS:
        values, gates = 3 * torch.randn(2, count, shape[1])
        values[0, :6] = torch.tensor([0.0, -100.0, 100.0, -0.0, 1e-20, -5.0])
        for given in (None, gates):
            rows = Rows(values, True, given)
            expected = packed.product(rows.computed())
            product = packed.product(rows)
            assert expected is not None
            assert product is not None
            assert float((product - expected).norm() / expected.norm()) < 1e-3
            # a value halfway between two may be rounded to either, and most are not
            assert float((product - expected).abs().median() / expected.abs().median()) < 1e-5


def test_activations_are_those_of_torch(library: Path) -> None:
    values = torch.linspace(-12, 12, 127 * 64).view(64, -1).t().contiguous()
    kernel = load_kernel(library)
    for gates in (None, values.flip(0)):
        expected = Rows(values, True, gates).computed().values
        quantised = quantise_rows(kernel, Rows(values, True, gates))
        assert quantised is not None
        numbers, scales = quantised
        largest = expected.abs().amax(dim=1, keepdim=True)
        torch.testing.assert_close(scales * 127, largest, rtol=1e-5, atol=1e-9)
        assert float((((numbers.float() - 128) * scales - expected).abs() / largest).max()) < 0.501 / 127


@pytest.mark.parametrize("shape", [(1, 64), (3, 5, 128), (11, 100), (30, 2048)])
def test_norms_are_those_of_torch(library: Path, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    rows, weight = 3 * torch.randn(shape), torch.randn(shape[-1])
    expected = torch.nn.functional.rms_norm(rows.double(), shape[-1:], weight.double(), 1e-6)
    result = normalise_rows(load_kernel(library), rows, weight, 1e-6)
    torch.testing.assert_close(result.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("gated", [False, True])
def test_an_activation_is_the_one_that_a_product_computes(library: Path, gated: bool) -> None:
    torch.manual_seed(0)
    kernel, gates = load_kernel(library), torch.randn(9, 128) if gated else None
    rows = Rows(torch.randn(9, 128), True, gates)
    values = activate_rows(kernel, rows)
    torch.testing.assert_close(values, rows.computed().values, atol=2e-6, rtol=1e-5)
    inside, outside = quantise_rows(kernel, rows), quantise_rows(kernel, Rows(values))
    assert inside is not None
    assert outside is not None
    assert all(map(torch.equal, inside, outside))
