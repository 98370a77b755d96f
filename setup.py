"""Build of the compiled kernels. They are optional: without a C++ compiler, installing goes on without them."""

from setuptools import Extension, setup

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
    depends=["kernels/linear.h"],
    # Calls of OpenMP are left open: the library that torch has loaded serves them.
    extra_compile_args=[*OPTIONS, "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-fopenmp"],
    language="c++",
    optional=True,
    py_limited_api=True,
)

setup(ext_modules=[TILES, SCORES, MOTION, LINEAR], options={"bdist_wheel": {"py_limited_api": "cp310"}})
