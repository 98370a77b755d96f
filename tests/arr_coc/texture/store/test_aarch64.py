"""The compiled kernels on aarch64, under an emulator: built without warnings, same bytes as the reference here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from arr_coc.texture.store import native
from arr_coc.texture.store.native import CompiledTexture, kernel_path, load_kernel
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.texture.store.raster import ReferenceTexture
from arr_coc.types import LEVELS
from tests.arr_coc.texture.store.test_contract import FORMATS, dirty_mask, regions_of
from tests.support.stores import require
from tests.support.video import random_planes, with_tiles_of

ROOT = Path(__file__).resolve().parents[4]
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
STRICT = ["-O3", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-pthread", "-fopenmp"]


def build(source: Path, *options: str) -> None:
    if not (shutil.which(COMPILER) and shutil.which(EMULATOR)):
        pytest.skip(f"no {COMPILER} or no {EMULATOR} (Debian: apt-get install g++-aarch64-linux-gnu qemu-user)")
    subprocess.run([COMPILER, *STRICT, *options, str(source)], check=True)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("aarch64") / "driver"
    build(ROOT / "tests" / "support" / "tiles_driver.cpp", "-static", "-o", str(program))
    return program


@pytest.mark.parametrize("source", sorted(path.name for path in (ROOT / "kernels").glob("*.cpp")))
def test_every_kernel_is_built_without_a_warning(source: str, tmp_path: Path) -> None:
    build(ROOT / "kernels" / source, "-fno-math-errno", "-shared", "-fPIC", "-o", str(tmp_path / "kernel.so"))


@pytest.mark.parametrize("size", [(1, 1), (75, 330), (128, 256)])
@pytest.mark.parametrize("fmt", FORMATS)
def test_the_same_bytes_on_aarch64(driver: Path, fmt: tuple[str, str], size: tuple[int, int]) -> None:
    require("compiled")
    rng = np.random.default_rng(0)
    first, other = (
        random_planes(rng, *size, layout=fmt[0], sampling=fmt[1])  # type: ignore[arg-type]
        for _ in range(2)
    )
    shape = PlaneFormat.of(first)
    second = with_tiles_of(first, other, dirty_mask(shape.grid, rng, "0.3"))
    reference = ReferenceTexture(shape, Thresholds())
    reference.update(first, np.ones(shape.grid.shape, bool))
    dirty, regions = reference.compare(second), regions_of(shape.grid, rng, 40)
    reference.update(second, dirty)
    expected = [dirty, *map(reference.read, range(LEVELS)), reference.gather(regions)]

    parts = [
        bytes(CompiledTexture(load_kernel(kernel_path()), shape, Thresholds())._texture),
        np.array([3, 12], np.int32),
        *(np.ascontiguousarray(plane) for planes in (first, second) for plane in planes.planes),
        np.array([len(regions)]),
        regions,
        np.array([len(native._FOOTPRINTS)]),
        native._FOOTPRINTS,
    ]
    output = subprocess.run(
        [EMULATOR, str(driver)], input=b"".join(bytes(part) for part in parts), stdout=subprocess.PIPE, check=True
    ).stdout
    assert len(output) == sum(part.nbytes for part in expected)
    for number, part in enumerate(expected):  # dirty, levels 0 to 5, pixels
        payload, output = output[: part.nbytes], output[part.nbytes :]
        np.testing.assert_array_equal(np.frombuffer(payload, part.dtype).reshape(part.shape), part, err_msg=str(number))
