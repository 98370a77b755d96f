"""The library's front door: every name is there, and nothing is loaded before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import arr_coc.ops


@pytest.mark.parametrize("name", arr_coc.ops.__all__)
def test_every_public_name_is_there_and_explains_itself(name: str) -> None:
    assert getattr(arr_coc.ops, name).__doc__
    assert name in dir(arr_coc.ops)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'arr_coc\.ops' has no attribute 'mipmap'"):
        _ = arr_coc.ops.mipmap


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, arr_coc.ops; assert not {'torch', 'cv2', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
