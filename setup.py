"""Build of the compiled kernels, and the long description.

The kernels are optional: without a C++ compiler, installing goes on without them.
"""

import os
import re
from pathlib import Path

from setuptools import Extension, setup
from setuptools.config.pyprojecttoml import read_configuration

OPTIONS = ["-O3", "-std=c++17", "-Wall", "-Wextra"]

TILES = Extension(
    "arr_coc.texture.store.tiles",
    sources=["kernels/tiles.cpp"],
    depends=["kernels/tiles.h"],
    extra_compile_args=[*OPTIONS, "-pthread"],
    extra_link_args=["-pthread"],
    language="c++",
    optional=True,
    py_limited_api=True,  # it uses nothing of Python: one wheel serves every version
)

SCORES = Extension(
    "arr_coc.relevance.scores",
    sources=["kernels/scores.cpp"],
    depends=["kernels/scores.h", "kernels/maps.h"],
    extra_compile_args=[*OPTIONS, "-fno-math-errno", "-fno-wrapv", "-Wno-psabi"],
    language="c++",
    optional=True,
    py_limited_api=True,
)

MOTION = Extension(
    "arr_coc.video.motion_kernel",
    sources=["kernels/motion.cpp"],
    depends=["kernels/motion.h"],
    extra_compile_args=[*OPTIONS, "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"],
    language="c++",
    optional=True,
    py_limited_api=True,
)

LINEAR = Extension(
    "arr_coc.qwen.small_weights.linear",
    sources=["kernels/linear.cpp"],
    depends=["kernels/linear.h", "kernels/linear_amx.h", "kernels/amx.h"],
    # Calls of OpenMP are left open: the library that torch has loaded serves them.
    extra_compile_args=[*OPTIONS, "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-fopenmp"],
    language="c++",
    optional=True,
    py_limited_api=True,
)

ATTENTION = Extension(
    "arr_coc.qwen.attention_kernel",
    sources=["kernels/attention.cpp"],
    depends=["kernels/attention_amx.h", "kernels/amx.h"],
    # OpenMP as for LINEAR. GCC 12 warns of its own header of AVX-512.
    extra_compile_args=[
        *(*OPTIONS, "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-fopenmp"),
        *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),
    ],
    language="c++",
    optional=True,
    py_limited_api=True,
)

HERE = Path(__file__).resolve().parent


def long_description(repository: str) -> str:
    """Return README.md; its links lead to the files of this version at `repository`, unless that is empty.

    Only the workflow of a release knows the address. Links of a page of PyPI have to be absolute.
    """
    text = (HERE / "README.md").read_text("utf-8")
    if not repository:
        return text
    version = read_configuration(HERE / "pyproject.toml", expand=False)["project"]["version"]
    text = re.sub(r"(!\[[^]]*\]\()(?![a-z]+:|#)", rf"\1{repository}/raw/v{version}/", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?![a-z]+:|#)", rf"\1{repository}/blob/v{version}/", text)


REPOSITORY = os.environ.get("ARR_COC_REPOSITORY", "")
URLS = {
    "Repository": REPOSITORY,
    "Documentation": f"{REPOSITORY}/tree/main/docs",
    "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
    "Issues": f"{REPOSITORY}/issues",
}

setup(
    ext_modules=[TILES, SCORES, MOTION, LINEAR, ATTENTION],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
    long_description=long_description(REPOSITORY),
    long_description_content_type="text/markdown",
    project_urls=URLS if REPOSITORY else {},
)
