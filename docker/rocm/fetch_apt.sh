#!/bin/bash
# Downloads Debian packages and all that they need beyond this base. Runs inside the base, with a network.
#   fetch_apt.sh OUT SNAPSHOT PACKAGE...    SNAPSHOT: such as 20260722T000000Z, or "now" where no snapshot service serves
set -euo pipefail
out=$1 snapshot=$2
shift 2
options=(--option "Dir::Cache::archives=$out" --option APT::Sandbox::User=root)
[[ $snapshot == now ]] || options+=(--snapshot "$snapshot")
mkdir -p "$out/partial"
apt-get "${options[@]}" update --quiet --quiet
apt-get "${options[@]}" install --download-only --yes --quiet --quiet --no-install-recommends "$@"
rm -rf "$out/partial" "$out/lock"
cd "$out"
compgen -G '*.deb' >/dev/null || { echo "error: nothing to download for $*: the base has them all" >&2 && exit 1; }
sha256sum -- *.deb >SHA256SUMS
