#!/bin/bash
# Makes FlyDSL's overlay wheel, and the tree that ATOM_FLYDSL_KERNELS_PATH names, with our edits to the kernels.
#   build_flydsl.sh TREE PINS MIRROR WHEEL_DIR KERNELS_DIR [KEEP_LINKED]
# KEEP_LINKED=on: its compiler keeps kernels that link outside bitcode, too; an opt-in, unverified on a GPU.
set -euo pipefail
tree=$1 pins=$2 mirror=$3 wheel_dir=$4 kernels_dir=$5 keep_linked=${6:-off}
here=$(cd "$(dirname "$0")" && pwd)
read -r version <<<"$(python -c 'import sys, tomllib; print(tomllib.load(open(sys.argv[1], "rb"))["git"]["flydsl"]["version"])' "$pins")"
megamoe patch apply --flydsl "$tree"
megamoe patch check --flydsl "$tree"
case $keep_linked in
    on)
        megamoe patch apply --flydsl-compiler "$tree"
        megamoe patch check --flydsl-compiler "$tree"
        ;;
    off) ;;
    *)
        echo "error: KEEP_LINKED is $keep_linked" >&2
        echo "  why: it is a switch, and half an opt-in would show as kernels compiled at each start" >&2
        echo "  fix: on or off" >&2
        exit 2
        ;;
esac
mkdir -p "$wheel_dir" "$kernels_dir"
python "$here/overlay_flydsl.py" "$mirror"/wheels/flydsl-*-cp312-*.whl "$tree" "$version" "$wheel_dir"
# kernels/ and tests/ on one path: MegaMoE imports the first, and upstream's weight helpers stand in the second.
cp -r "$tree/kernels" "$tree/tests" "$tree/LICENSE" "$kernels_dir/"
