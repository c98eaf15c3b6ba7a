#!/bin/bash
# Downloads Debian packages and all that they need beyond this base. Runs inside the base, with a network.
#   fetch_apt.sh OUT SNAPSHOT PACKAGE...           SNAPSHOT: such as 20260722T000000Z, or "now" where no snapshot service serves
#   fetch_apt.sh --only-ask SNAPSHOT PACKAGE...    prints what it would download: address, name, size and sha256
set -euo pipefail
out=$1 snapshot=$2
shift 2
options=(--option APT::Sandbox::User=root)
[[ $snapshot == now ]] || options+=(--snapshot "$snapshot")
if [[ $out == --only-ask ]]; then
    apt-get "${options[@]}" update --quiet --quiet
    exec apt-get "${options[@]}" install --print-uris --yes --quiet --quiet --no-install-recommends "$@"
fi
options+=(--option "Dir::Cache::archives=$out")
mkdir -p "$out/partial"
apt-get "${options[@]}" update --quiet --quiet
apt-get "${options[@]}" install --download-only --yes --quiet --quiet --no-install-recommends "$@"
rm -rf "$out/partial" "$out/lock"
cd "$out"
compgen -G '*.deb' >/dev/null || { echo "error: nothing to download for $*: the base has them all" >&2 && exit 1; }
sha256sum -- *.deb >SHA256SUMS
