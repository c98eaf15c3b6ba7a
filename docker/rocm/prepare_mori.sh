#!/bin/bash
# Compiles mori's device code for gfx950 into OUT, so that serving needs neither a compiler nor a writable home for it.
#   prepare_mori.sh OUT
# MORI_GPU_ARCHS and MORI_DEVICE_NIC come from the image's environment: they are part of the cache's key, at build and at run.
set -euo pipefail
out=$1
here=$(cd "$(dirname "$0")" && pwd)
install -d "$out"
# FlyDSL's code objects are of version 6; mori's own pre-compilation makes version 5 only.
python "$here/step.py" mori-bitcode -- env MORI_JIT_CACHE_DIR="$out/jit" python -c '
import hashlib, shutil, sys
from mori.ir.bitcode import find_bitcode
target = sys.argv[1] + "/libmori_shmem_device.cov6.bc"
shutil.copyfile(find_bitcode(cov=6), target)
body = open(target, "rb").read()
assert body[:2] == b"BC", f"{target} is no LLVM bitcode"
open(target + ".sha256", "w").write(hashlib.sha256(body).hexdigest() + "\n")
' "$out"
# Pre-compilation skips what fails without an exit code: read what it says, and count what is there.
python "$here/step.py" mori-kernels -- bash -euo pipefail -c '
    MORI_PRECOMPILE=1 MORI_JIT_CACHE_DIR="$1/jit" python -c "import mori" | tee "$1/precompile.log"
    if grep -q SKIPPED "$1/precompile.log" || [[ -z $(find "$1/jit" -name "*.hsaco" -size +0) ]]; then
        echo "error: mori left out kernels, or made none (its words are above)" >&2
        echo "  why: each rank would compile them when its symmetric heap is set up, all at once" >&2
        echo "  fix: see why hipcc failed for $MORI_GPU_ARCHS" >&2
        exit 1
    fi
    rm "$1/precompile.log"
' precompile "$out"
