# Sourced: makes a Debian base image without any registry, by debootstrap and `docker import`.
# shellcheck shell=bash
#
#   ensure_base_image TAG PACKAGE...   makes TAG unless it is there already, made by the same recipe
#   base_recipe PACKAGE...             prints the recipe's hash: name the base after it (megamoe-base:<first 12 digits>)
#
# Needs root (chroot, mount), debootstrap and a running container engine. Says what it does on stderr.
# Environment: MEGAMOE_DEBIAN_MIRROR (default: what apt on this machine uses), MEGAMOE_STATE (default: .state).

BASE_SUITE=bookworm
BASE_LABEL=io.megamoe.base.recipe
BASE_LIB=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BASE_NEEDS_KIB=2500000 # unpacked minbase, packages, the tar stream and the imported layer, for the largest base we make

base_recipe() { # PACKAGE...: the same packages in any order, made by the same script, are the same recipe
    { cat "$BASE_LIB/base_image.sh" && printf '%s\n' "$BASE_SUITE" && printf '%s\n' "$@" | sort -u; } | sha256sum | cut -d' ' -f1
}

base_error() { # WHAT WHY FIX
    printf 'error: %s\n  why: %s\n  fix: %s\n' "$@" >&2
}

# The mirror this machine's apt already trusts; empty lets debootstrap use its own default.
base_mirror() {
    if [[ -n ${MEGAMOE_DEBIAN_MIRROR:-} ]]; then
        printf '%s\n' "$MEGAMOE_DEBIAN_MIRROR"
    elif command -v apt-get >/dev/null; then
        # shellcheck disable=SC2016 # apt expands these, not the shell
        apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
            awk -v suite="$BASE_SUITE" '$1 == suite && $2 == "main" { print $3; exit }'
    fi
}

# A new folder PREFIX.XXXXXX. Callers must stop when there is none: bash ignores `set -e` left of an `||`, and what follows
# tidies up below the folder, which without it would be this machine.
base_folder() { # PREFIX
    mktemp -d "$1.XXXXXX" || {
        base_error "no folder $1.* can be made" "the base is unpacked there" \
            "see the line above (space, permissions), or point MEGAMOE_STATE at another file system"
        return 4
    }
}

# Runs inside `unshare --mount`, so that /proc in the chroot goes away however this ends.
# shellcheck disable=SC2016 # expanded by the inner shell
BASE_INSTALL='set -eu
root=$1; shift
mount -t proc proc "$root/proc"
printf "#!/bin/sh\nexit 101\n" >"$root/usr/sbin/policy-rc.d"; chmod 755 "$root/usr/sbin/policy-rc.d"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
if [ $# -gt 0 ]; then
    # No fsync per file: a tree that a crash cuts short is thrown away, not used.
    chroot "$root" apt-get install --yes -qq --no-install-recommends -o Dpkg::Options::=--force-unsafe-io "$@"
fi
rm "$root/usr/sbin/policy-rc.d"'

ensure_base_image() { # TAG PACKAGE...
    local tag=$1 recipe have
    shift
    recipe=$(base_recipe "$@")
    have=$(docker image inspect --format "{{ index .Config.Labels \"$BASE_LABEL\" }}" "$tag" 2>/dev/null || printf none)
    if [[ $have == "$recipe" ]]; then
        echo "base $tag is there already" >&2
        return 0
    fi
    if [[ $(id -u) -ne 0 ]]; then
        base_error "a base image can only be made by root" "debootstrap unpacks with owners and runs chroot" "run this with sudo"
        return 4
    fi
    local tool
    for tool in debootstrap unshare chroot tar; do
        if ! command -v "$tool" >/dev/null; then
            base_error "$tool is missing" "the base image is made with it, because no registry is used" "apt-get install debootstrap util-linux coreutils tar"
            return 4
        fi
    done
    local state=${MEGAMOE_STATE:-.state} free
    mkdir -p "$state/debs" || return 4
    state=$(cd "$state" && pwd)
    free=$(df --output=avail -k "$state" | tail -n 1)
    if ((free < BASE_NEEDS_KIB)); then
        base_error "$((free / 1024)) MiB are free under $state, $((BASE_NEEDS_KIB / 1024)) MiB are needed" \
            "the base is unpacked there before it is imported" "free some space, or point MEGAMOE_STATE at another file system"
        return 4
    fi
    (make_base_image "$tag" "$recipe" "$state" "$@")
}

# The suite's minimal system, from which every base of the day is made: a tar of debootstrap's tree, whole or absent.
# Two bases made at once take turns here. Its package lists age, and the mirror drops what they name: after a day, anew.
make_minimal() { # STATE; in a subshell of its own, so that lock and trap are ours
    set -euo pipefail
    local state=$1 tar=$1/minimal-$BASE_SUITE.tar log=$1/minimal.log root mirror
    exec {lock}>"$state/minimal.lock" && flock "$lock" || return
    if [[ -n $(find "$tar" -mmin -1440 2>/dev/null) ]]; then
        return 0
    fi
    root=$(base_folder "$state/minimal") || return
    # One file system: a mount that survived (it should not) is never deleted through.
    # shellcheck disable=SC2064 # the values of now are meant
    trap "rm -rf --one-file-system '$root' '$tar.part'" EXIT
    mirror=$(base_mirror)
    echo "debootstrap $BASE_SUITE" >&2
    # A mount namespace of its own, so that its /proc goes away however it ends.
    if ! unshare --mount debootstrap --variant=minbase --cache-dir="$state/debs" "$BASE_SUITE" "$root" ${mirror:+"$mirror"} >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        base_error "debootstrap of $BASE_SUITE failed (whole log: $log)" "the base image cannot be made without a Debian mirror" \
            "check the network to the mirror, or name another in MEGAMOE_DEBIAN_MIRROR"
        return 3
    fi
    tar --create --numeric-owner --xattrs --one-file-system --file "$tar.part" -C "$root" . && mv "$tar.part" "$tar"
}

make_base_image() { # TAG RECIPE STATE PACKAGE...; in a subshell of its own, so that the trap is ours
    set -euo pipefail
    local tag=$1 recipe=$2 state=$3 root log
    shift 3
    (make_minimal "$state") || return
    root=$(base_folder "$state/base") || return
    log=$root.log
    # shellcheck disable=SC2064 # the value of now is meant
    trap "rm -rf --one-file-system '$root'" EXIT
    echo "making base $tag: $BASE_SUITE with ${*:-nothing more}" >&2
    tar --extract --numeric-owner --xattrs --same-permissions --file "$state/minimal-$BASE_SUITE.tar" -C "$root" || return
    if ! unshare --mount bash -c "$BASE_INSTALL" install "$root" "$@" >>"$log" 2>&1; then
        tail -n 5 "$log" >&2
        base_error "installing ${*} into the base failed (whole log: $log)" "the image needs these packages" \
            "read the last lines above; a package name may be wrong, or the mirror unreachable"
        return 3
    fi
    # What is the machine's and not the recipe's: logs, caches, identities, keys that every copy would share.
    rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old \
        "$root"/var/cache/ldconfig/aux-cache "$root"/etc/resolv.conf "$root"/etc/hostname "$root"/etc/ssh/ssh_host_*
    find "$root/var/log" -type f -delete
    find "$root" -xdev -name __pycache__ -prune -exec rm -rf {} +
    : >"$root/etc/machine-id"
    # Docs, manuals and translations serve nobody in a container; licences stay.
    rm -rf "$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/usr/share/info/*
    find "$root/usr/share/doc" -type f ! -name copyright -delete
    tar --create --numeric-owner --sort=name --mtime=@0 --one-file-system --xattrs -C "$root" . |
        docker import --change "LABEL $BASE_LABEL=$recipe" --change 'CMD ["bash"]' - "$tag" >/dev/null || return
    rm -f "$log" # kept where it says why a base could not be made
    echo "base $tag is $(docker image inspect --format '{{.Id}}' "$tag")" >&2
}
