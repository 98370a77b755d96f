"""Compute programs from `kernels/*.comp`, compiled when they are first wanted; all contexts of a device share them.

They take no uniforms, which would be shared as well: what a call is about lies in the buffers that it binds.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

from arr_coc.errors import BackendMissing
from arr_coc.ops.gl.device import Device
from arr_coc.shipped import kernel_folder

_programs: WeakKeyDictionary[Device, dict[tuple[str, ...], int]] = WeakKeyDictionary()
_compiling = threading.Lock()


def program(device: Device, kernel: str, *defines: str) -> int:
    """The program of `kernels/<kernel>.comp` with preprocessor symbols defined. Some context must be current.

    Raises BackendMissing where the source is not here or the driver does not compile it.
    """
    key = (kernel, *defines)
    with _compiling:
        known = _programs.setdefault(device, {})
        if key not in known:
            known[key] = _compiled(device, kernel, source(kernel, *defines))
        return known[key]


def source(kernel: str, *defines: str) -> str:
    """The source, its `#define`s after the line with the version. Raises BackendMissing where it is not here."""
    path = kernel_folder() / f"{kernel}.comp"
    try:
        version, _, rest = path.read_text(encoding="utf-8").partition("\n")
    except OSError as error:
        raise BackendMissing(
            f"texture.backend = gl needs {path}, which is not here", "run from a checkout, or install the package anew"
        ) from error
    return "\n".join([version, *(f"#define {define}" for define in defines), rest])


def _compiled(device: Device, kernel: str, text: str) -> int:
    gl = device.library.gl
    with device.making(f"the program {kernel}"):
        shader, name = gl.glCreateShader(gl.GL_COMPUTE_SHADER), gl.glCreateProgram()
        try:
            gl.glShaderSource(shader, [text])
            gl.glCompileShader(shader)
            if not gl.glGetShaderiv(shader, gl.GL_COMPILE_STATUS):
                raise _refused(device, kernel, gl.glGetShaderInfoLog(shader))
            gl.glAttachShader(name, shader)
            gl.glLinkProgram(name)
            if not gl.glGetProgramiv(name, gl.GL_LINK_STATUS):
                raise _refused(device, kernel, gl.glGetProgramInfoLog(name))
        except BackendMissing:
            gl.glDeleteProgram(name)
            raise
        finally:
            gl.glDeleteShader(shader)
    return int(name)


def _refused(device: Device, kernel: str, log: Any) -> BackendMissing:
    text = log.decode(errors="replace") if isinstance(log, bytes) else str(log)
    said = (text.strip().splitlines() or ["no reason given"])[0]
    return BackendMissing(
        f"{device.renderer} does not compile {kernel}.comp ({said})",
        "update its driver or choose texture.backend = cpu",
    )
