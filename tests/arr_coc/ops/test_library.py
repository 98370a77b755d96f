"""Public names of the packages: every name exists, and nothing is loaded before it is used."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import ModuleType

import pytest

import arr_coc
import arr_coc.ops
import arr_coc.texturevlm

PACKAGES = (arr_coc, arr_coc.ops, arr_coc.texturevlm)


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package in PACKAGES for name in package.__all__], ids=str
)
def test_every_public_name_is_there_and_explains_itself(package: ModuleType, name: str) -> None:
    assert getattr(package, name).__doc__
    assert dir(package) == sorted(package.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'mipmap'"):
        _ = package.mipmap


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_nothing_heavy(package: ModuleType) -> None:
    code = f"import sys, {package.__name__}; assert not {{'torch', 'cv2', 'numpy'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_founding_names_are_those_of_the_texture_library() -> None:
    """`arr_coc.texturevlm` doubles nothing."""
    for name in ("FoveatedPatches", "VideoStream", "generate_mipmaps", "sample_foveated"):
        assert getattr(arr_coc.texturevlm, name) is getattr(arr_coc.ops, name)
    assert issubclass(arr_coc.texturevlm.Texture, arr_coc.ops.Texture)
    parameters = inspect.signature(arr_coc.texturevlm.sample_foveated).parameters
    assert list(parameters) == ["image", "fixation_point", "num_patches", "cortical_magnification"]
    assert "delta_only" in inspect.signature(arr_coc.texturevlm.VideoStream.update).parameters
    assert next(iter(inspect.signature(arr_coc.texturevlm.VideoStream).parameters)) == "resolution"
    assert callable(arr_coc.texturevlm.Texture.from_image)
