#!/bin/sh
# test_halves.sh PYTHON [PYTEST OPTIONS]: runs the tests of the pipeline and all others side by side, for two cores. The
# first half's output follows when the second has ended. The exit status is 0 if both passed.
set -u
python=$1
shift
output=$(mktemp)
trap 'rm -f "$output"' EXIT
trap 'kill "$pipeline" 2>/dev/null; exit 130' INT TERM
"$python" -m pytest "$@" tests/stream >"$output" 2>&1 &
pipeline=$!
"$python" -m pytest "$@" tests --ignore=tests/stream
others=$?
wait "$pipeline"
first=$?
cat "$output"
[ "$others" = 0 ] && [ "$first" = 0 ]
