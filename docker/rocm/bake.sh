#!/bin/bash
# Compiles the kernels ahead of time, has a second process find every one of them, and lints them together with those
# that no cache holds: stage 1 and combine, compiled by each service at its start, here for one rank and the linter alone.
#   bake.sh ROOT KEEP_LINKED    ROOT holds flydsl/ and mori/, and gets kernels/
set -euo pipefail
root=$1 keep_linked=$2
here=$(cd "$(dirname "$0")" && pwd)
bitcode=$root/mori/libmori_shmem_device.cov6.bc
bake=(python "$here/bake.py" --kernels "$root/flydsl" --out "$root/kernels")
"${bake[@]}" --linked "$keep_linked" --bitcode "$bitcode"
"${bake[@]}" --linked "$keep_linked" --bitcode "$bitcode" --verify
linted=("$root/kernels")
if [ "$keep_linked" = off ]; then
    if [ ! -f "$bitcode" ]; then
        # A stand-in base: the step mori-bitcode was written down as not run, and serve refuses the image.
        bitcode=$(python -c 'from kernel_lane.capture import rocm; print(rocm.WAITS)')
        echo "stage 1 and combine are linked with the proof lane's stand-in, $bitcode, for want of mori's bitcode"
    fi
    at_start=$(mktemp -d)
    trap 'rm -r "$at_start"' EXIT
    "${bake[@]}" --bitcode "$bitcode" --rank 0 --look "$at_start"
    linted+=("$at_start")
fi
megamoe kernels lint "${linted[@]}"
