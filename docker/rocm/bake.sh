#!/bin/bash
# Compiles the kernels ahead of time, and has a second process find every one of them.
#   bake.sh ROOT KEEP_LINKED    ROOT holds flydsl/ and mori/, and gets kernels/
set -euo pipefail
root=$1 keep_linked=$2
here=$(cd "$(dirname "$0")" && pwd)
bake=(python "$here/bake.py" --kernels "$root/flydsl" --out "$root/kernels" --linked "$keep_linked"
    --bitcode "$root/mori/libmori_shmem_device.cov6.bc")
"${bake[@]}"
"${bake[@]}" --verify
