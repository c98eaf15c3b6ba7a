#!/bin/bash
# Installs the mirror's Debian packages, offline and in one transaction, and shows that mori's libraries are found.
#   install_apt.sh FOLDER
set -euo pipefail
folder=$1
if [[ ! -s $folder/SHA256SUMS ]]; then
    echo "error: $folder/SHA256SUMS is missing or empty" >&2
    echo "  why: the packages that mori's native part needs come from the mirror, never from the network" >&2
    echo "  fix: --build-context mirror=DIR, where \`megamoe pins mirror DIR\` made DIR" >&2
    exit 1
fi
(cd "$folder" && sha256sum --check --strict --quiet SHA256SUMS)
export DEBIAN_FRONTEND=noninteractive
# dpkg, not apt: no package list is read, so nothing but these files can get in. Unpack all, then configure all.
dpkg --unpack "$folder"/*.deb
dpkg --configure --pending
dpkg --audit
rm -rf /var/log/dpkg.log /var/log/apt /var/cache/debconf/*-old /var/lib/dpkg/*-old /var/cache/ldconfig/aux-cache
