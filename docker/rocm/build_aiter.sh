#!/bin/bash
# Builds aiter's wheel from its pinned tree.
#   build_aiter.sh TREE PINS MIRROR OUT
# Not editable: aiter's set-up then neither compares flydsl's version nor installs another flydsl. AITER_USE_SYSTEM_TRITON: else it
# replaces the base's Triton by one from whatever index answers, and swallows the failure.
set -euo pipefail
tree=$1 pins=$2 mirror=$3 out=$4
here=$(cd "$(dirname "$0")" && pwd)
read -r version ck <<<"$(python -c 'import sys, tomllib; a = tomllib.load(open(sys.argv[1], "rb"))["git"]["aiter"]
print(a["version"], a["submodules"]["3rdparty/composable_kernel"][1])' "$pins")"

python "$here/step.py" aiter-composable-kernel -- bash -euc '
    rm -rf "$2"
    git clone --quiet --no-checkout "$1" "$2"
    git -C "$2" -c advice.detachedHead=false checkout --quiet "$3"
    rm -rf "$2/.git"
' clone "$mirror/git/git.aiter.3rdparty--composable_kernel.bundle" "$tree/3rdparty/composable_kernel" "$ck"

enable_ck=0
[[ -d $tree/3rdparty/composable_kernel/include ]] && enable_ck=1
export AITER_USE_SYSTEM_TRITON=1 BUILD_TARGET=rocm ENABLE_CK=$enable_ck GPU_ARCHS=gfx950 MAX_JOBS=${MAX_JOBS:-16} \
    SETUPTOOLS_SCM_PRETEND_VERSION_FOR_AMD_AITER=$version
wheel=(python -m pip wheel --quiet --no-index --no-deps --no-build-isolation --no-cache-dir --wheel-dir "$out" "$tree")
python "$here/step.py" aiter-kernels -- env PREBUILD_KERNELS=1 "${wheel[@]}"
compgen -G "$out/amd_aiter-*.whl" >/dev/null || PREBUILD_KERNELS=0 "${wheel[@]}"
# Objects that the compiler left beside the sources belong to the wheel or to nobody.
rm -rf "$tree/build" "$tree/aiter_meta"
compgen -G "$out/amd_aiter-*.whl"
