#!/usr/bin/env bash
# Resolves the locks under requirements/ anew, with hashes and without any index address or host name.
# torch is resolved from wherever pip finds its CPU build (a local folder named by PIP_FIND_LINKS, say).
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools/venv"
"$tools/venv/bin/pip" install --quiet pip-tools

compile() { # compile OUTPUT INPUT... : one lock
    local output=$1
    shift
    CUSTOM_COMPILE_COMMAND="scripts/lock.sh" "$tools/venv/bin/pip-compile" --quiet --generate-hashes --allow-unsafe --strip-extras \
        --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --output-file "$output" "$@"
    # A lock that names a host would tie the reader to it.
    if grep -nE '://' "$output"; then
        echo "error: $output names an address (lines above)" >&2
        return 1
    fi
}

compile requirements/test.lock pyproject.toml requirements/build.in --extra engine --extra deploy --extra lane --extra test
# The reference image: what it runs, and what builds our own wheel inside it.
compile requirements/engine.lock pyproject.toml --extra engine
compile requirements/build.lock requirements/build.in
# The rocm image: another Python, another glibc, and the index as it stood on a day (docker/pins.toml).
bash requirements/lock_rocm.sh
