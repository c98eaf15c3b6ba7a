# Sourced by the scripts here: one virtual environment per lock, rebuilt when the lock changes.
# shellcheck shell=bash

# ensure_venv DIR LOCK: installs LOCK (hashes required) and this checkout into DIR; says what it does.
ensure_venv() {
    local dir=$1 lock=$2 stamp
    stamp=$(cat "$lock" pyproject.toml | sha256sum | cut -d' ' -f1)
    if [[ -f $dir/.stamp && $(<"$dir/.stamp") == "$stamp" ]]; then
        return 0
    fi
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "error: python3 3.11 or newer is needed, found: $(python3 --version 2>&1)" >&2
        echo "  why: the locks under requirements/ are resolved for it" >&2
        echo "  fix: install python3 (>= 3.11) and run this again" >&2
        return 4
    fi
    echo "making $dir from $lock (hashes checked)"
    rm -rf "$dir"
    need_venv || return
    python3 -m venv "$dir" || return 4
    "$dir/bin/pip" install --quiet --require-hashes -r "$lock" || {
        echo "error: $lock could not be installed into $dir" >&2
        echo "  why: a package is not reachable, or its hash is not the locked one" >&2
        echo "  fix: check the network to the package index; for torch, put the CPU wheel where pip's find-links points" >&2
        rm -rf "$dir"
        return 3
    }
    # The build backend is in the lock too, so nothing is fetched outside it.
    "$dir/bin/pip" install --quiet --no-deps --no-build-isolation -e . || return 4
    echo "$stamp" >"$dir/.stamp"
}

# need_venv: Debian ships python3 without what makes virtual environments.
need_venv() {
    python3 -c 'import ensurepip' 2>/dev/null || announce_install python3-venv
}

# announce_install PACKAGE...: says what is missing, installs it with apt as root, or says exactly what to install.
announce_install() {
    if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
        echo "error: missing: $*" >&2
        echo "  why: this step needs it, and it can only be installed by root with apt-get here" >&2
        echo "  fix: sudo apt-get update && sudo apt-get install --yes $*" >&2
        return 4
    fi
    echo "installing missing packages: $*"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install --yes -qq --no-install-recommends "$@" >/dev/null
}
