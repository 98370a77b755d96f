#!/bin/sh
# The steps of the image. deploy/Dockerfile and tests/deploy/test_install.py run them in the folder of the sources:
#
#     PREFIX=/opt/arr-coc-stream TORCH=cpu sh deploy/install.sh torch
#     PREFIX=/opt/arr-coc-stream EXTRAS=mqtt,web sh deploy/install.sh program
#
# TORCH is a build of torch: cpu, cu128; pip's own choice when empty. torch comes first, so that a change of the sources
# does not download it again.
set -eu

pip() {
    "$PREFIX/bin/python" -m pip "$@" --quiet --disable-pip-version-check
}

case "$1" in
torch)
    python3 -m venv "$PREFIX"
    pip install --constraint constraints.txt torch \
        ${TORCH:+--index-url "https://download.pytorch.org/whl/$TORCH" --extra-index-url https://pypi.org/simple}
    ;;
program)
    wheels=$(mktemp -d)
    trap 'rm -rf "$wheels"' EXIT
    pip wheel --no-deps --wheel-dir "$wheels" .
    set -- "$wheels"/*.whl
    pip install --constraint constraints.txt "$1[$EXTRAS]"
    ;;
*)
    echo "install.sh: no step $1; there are torch and program" >&2
    exit 2
    ;;
esac
