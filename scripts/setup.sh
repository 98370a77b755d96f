#!/bin/sh
# Makes the virtual environment that the Makefile uses. Called as: PYTHON=python3 VENV=.venv sh scripts/setup.sh
set -eu

fail() {
    echo "setup: $1" >&2
    exit 1
}

as_root_with_apt() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null
}

command -v "$PYTHON" >/dev/null || {
    as_root_with_apt || fail "no $PYTHON here; install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3"
    apt-get update -qq && apt-get install -y -qq python3 python3-venv
}

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "Python 3.10 or newer is needed, $PYTHON is $("$PYTHON" -V 2>&1); name another: make PYTHON=python3.11"

"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || {
    as_root_with_apt || fail "$PYTHON cannot make virtual environments; on Debian or Ubuntu: sudo apt-get install python3-venv"
    apt-get update -qq && apt-get install -y -qq python3-venv
}

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
echo "Installing the pinned packages into $VENV (a few minutes the first time)…"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' ||
    fail "the packages could not be installed; see pip's message above"
"$VENV/bin/python" -c 'import ctypes; [ctypes.CDLL(name) for name in ("libEGL.so.1", "libOpenGL.so.0")]' 2>/dev/null ||
    echo "No OpenGL here, which only --backend gl needs; on Debian or Ubuntu: sudo apt-get install libegl1 libgl1-mesa-dri libopengl0"
