#!/usr/bin/env bash
# The stand-in for rocm/pytorch that the whole Dockerfile is built on where neither a registry nor ROCm is at hand.
#   tests/image/stand_in/make_base.sh OUT.tar WORKDIR PYTHON_PREFIX MIRROR
# Same layout as the real base: /opt/venv with Python 3.12 and torch 2.10.0 (the package index's build, run on the CPU), /opt/rocm
# with device libraries, ld.lld and a HIP library that answers "no device" to every call. What it lacks is written to
# /etc/megamoe/stand_in.json: the build refuses a base with that file unless it is told that it may not serve.
set -euo pipefail
out=$1 work=$2 python=$3 mirror=$4
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$work/debs"
root=$(mktemp -d "$work/base.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
# A mount namespace of its own, so that its /proc goes away however it ends.
unshare --mount debootstrap --variant=minbase --cache-dir="$work/debs" trixie "$root" ${MEGAMOE_DEBIAN_MIRROR:+"$MEGAMOE_DEBIAN_MIRROR"} >&2
cp /etc/resolv.conf "$root/etc/resolv.conf"
# mori's wheel wants gRPC 1.51 with abseil 20220623: Ubuntu 24.04 has them, bookworm has them, trixie has newer ones.
sed 's/trixie/bookworm/' "$root/etc/apt/sources.list" >"$root/etc/apt/sources.list.d/bookworm.list"
printf 'Package: *\nPin: release n=bookworm\nPin-Priority: 100\n' >"$root/etc/apt/preferences.d/bookworm"
packages=(ca-certificates git libbz2-1.0 libffi8 liblzma5 libncursesw6 libreadline8t64 libsqlite3-0 libssl3t64 libuuid1 libexpat1 zlib1g
    libdrm2 libdrm-amdgpu1 libhsa-runtime64-1 rocm-device-libs-17 lld-19 libgomp1 libstdc++6 gcc libc6-dev)
# shellcheck disable=SC2016 # expanded by the inner shell
unshare --mount bash -euc '
    mount -t proc proc "$1/proc"
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C
    chroot "$1" apt-get update -qq >&2
    chroot "$1" apt-get install --yes -qq --no-install-recommends "${@:2}" >&2
' install "$root" "${packages[@]}"

# Python 3.12, readable by everyone.
cp -a "$python" "$root/opt/python3.12"
rm -rf "$root"/opt/python3.12/lib/python3.12/{test,idlelib} "$root"/opt/python3.12/lib/*.a "$root"/opt/python3.12/lib/python3.12/config-*/*.a
find "$root/opt/python3.12" -name __pycache__ -prune -exec rm -rf {} +
printf '/opt/python3.12/lib\n/opt/rocm/lib\n' >"$root/etc/ld.so.conf.d/stand-in.conf"

# ROCm's directories: real device libraries and linker, a HIP library without a device.
mkdir -p "$root"/opt/rocm/{amdgcn/bitcode,llvm/bin,lib,bin,.info}
find "$root/usr/lib" -name '*.bc' -path '*amdgcn*' -exec cp {} "$root/opt/rocm/amdgcn/bitcode/" \;
test -s "$root/opt/rocm/amdgcn/bitcode/ockl.bc"
test -s "$root/opt/rocm/amdgcn/bitcode/hip.bc" || cp "$root/opt/rocm/amdgcn/bitcode/opencl.bc" "$root/opt/rocm/amdgcn/bitcode/hip.bc"
ln -s ../../../../usr/bin/ld.lld-19 "$root/opt/rocm/llvm/bin/ld.lld"
echo 7.2.4-standin >"$root/opt/rocm/.info/version"
unpacked=$work/native
mkdir -p "$unpacked"
for wheel in "$mirror"/wheels/{flydsl-*cp312,amd_mori*}*.whl; do python3 -m zipfile -e "$wheel" "$unpacked"; done
python3 "$here/no_device_hip.py" "$unpacked" "$work/hip"
gcc -shared -fPIC -w -Wl,-soname,libamdhip64.so.7 -Wl,--version-script="$work/hip/hip.map" -o "$root/opt/rocm/lib/libamdhip64.so.7" "$work/hip/hip.c"
# Ubuntu's gRPC is linked to RE2 10, bookworm's to 9; mori names 10 and calls nothing of it.
echo 'int unused;' | gcc -shared -fPIC -Wl,-soname,libre2.so.10 -x c - -o "$root/opt/rocm/lib/libre2.so.10"

chroot "$root" ldconfig
chroot "$root" /opt/python3.12/bin/python3.12 -m venv /opt/venv
mkdir -p "$root/tmp/torch"
"$python/bin/python3.12" -m pip download --quiet --only-binary :all: --dest "$root/tmp/torch" torch==2.10.0 >&2
chroot "$root" env --ignore-environment HOME=/tmp PATH=/usr/bin:/bin /opt/venv/bin/pip install --quiet --no-cache-dir --no-compile --no-index \
    --find-links /tmp/torch torch==2.10.0 >&2
# What an inference-only stand-in never opens; the same directories of the real base are not touched by our build.
rm -rf "$root"/tmp/* "$root"/opt/venv/lib/python3.12/site-packages/torch/{test,include}
cat >"$root/etc/apt/sources.list" </dev/null
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale,info}/* "$root"/etc/apt/preferences.d/bookworm
rm -f "$root/etc/apt/sources.list.d/bookworm.list" "$root"/var/log/*.log "$root"/var/log/apt/* "$root/etc/resolv.conf"
find "$root/opt/venv" -name __pycache__ -prune -exec rm -rf {} +
mkdir -p "$root/etc/megamoe"
chroot "$root" /opt/venv/bin/python - >"$root/etc/megamoe/stand_in.json" <<'PY'
import json
from importlib.metadata import version
print(json.dumps({"stands_in_for": "rocm/pytorch", "torch": version("torch"), "triton": version("triton"),
                  "lacks": ["hipcc", "ROCm's clang", "a HIP runtime with devices", "composable_kernel's sources"]}, indent=1))
PY
tar --create --numeric-owner --sort=name --mtime=@0 --one-file-system -C "$root" . >"$out.tmp"
mv "$out.tmp" "$out"
