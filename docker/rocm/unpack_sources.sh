#!/bin/bash
# Checks a pinned repository out of its bundle, and proves that the tree is the commit.
#   unpack_sources.sh NAME PINS MIRROR TARGET
set -euo pipefail
name=$1 pins=$2 mirror=$3 target=$4
commit=$(python -c 'import sys, tomllib; print(tomllib.load(open(sys.argv[1], "rb"))["git"][sys.argv[2]]["commit"])' "$pins" "$name")
bundle=$mirror/git/git.$name.bundle
if [[ ! -s $bundle ]]; then
    echo "error: $bundle is missing or empty" >&2
    echo "  why: $name at $commit comes from the mirror, never from the network" >&2
    echo "  fix: --build-context mirror=DIR, where \`megamoe pins mirror DIR\` made DIR" >&2
    exit 1
fi
git clone --quiet --no-checkout "$bundle" "$target"
git -C "$target" -c advice.detachedHead=false checkout --quiet "$commit"
[[ $(git -C "$target" rev-parse HEAD) == "$commit" && -z $(git -C "$target" status --porcelain) ]] || {
    echo "error: $target is not the tree of $commit" >&2
    exit 1
}
# Versions are given, not derived: history would only make the layer large and its bytes vary.
rm -rf "$target/.git"
echo "$name $commit"
