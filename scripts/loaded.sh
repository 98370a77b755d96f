#!/bin/sh
# Runs a command beside one busy loop for each core, for example: sh scripts/loaded.sh make test
set -u

loops=""
for _ in $(seq "$(nproc)"); do
    sh -c 'while kill -0 "$1" 2>/dev/null; do i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; done' busy $$ &
    loops="$loops $!"
done
trap 'kill $loops 2>/dev/null' EXIT
trap 'exit 130' INT TERM HUP

"$@"
