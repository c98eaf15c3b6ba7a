#!/usr/bin/env bash
# A Debian trixie with an engine that has BuildKit (bookworm's 20.10 has none), as image TAG. Needs root and debootstrap.
#   tests/image/stand_in/make_builder.sh TAG WORKDIR
set -euo pipefail
tag=$1 work=$2
packages=(docker.io docker-buildx docker-cli iptables ca-certificates skopeo git tini xz-utils)
mkdir -p "$work/debs"
root=$(mktemp -d "$work/builder.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
# A mount namespace of its own, so that its /proc goes away however it ends.
unshare --mount debootstrap --variant=minbase --cache-dir="$work/debs" trixie "$root" ${MEGAMOE_DEBIAN_MIRROR:+"$MEGAMOE_DEBIAN_MIRROR"} >&2
cp /etc/resolv.conf "$root/etc/resolv.conf"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
unshare --mount bash -euc '
    mount -t proc proc "$1/proc"
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C
    chroot "$1" apt-get install --yes -qq --no-install-recommends "${@:2}" >&2
' install "$root" "${packages[@]}"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root/usr/sbin/policy-rc.d" "$root"/usr/share/{doc,man,locale}/*
tar --create --numeric-owner --sort=name --mtime=@0 --one-file-system -C "$root" . | docker import - "$tag" >&2
