#!/usr/bin/env bash
# Resolves the rocm image's locks (Python 3.12, glibc 2.39) as the index stood when the pinned ATOM was written.
# uv does it, because it can resolve for another Python and for a date; the locks are read by pip.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools/venv"
"$tools/venv/bin/pip" install --quiet uv
pin() { python3 -c 'import sys, tomllib; v = tomllib.load(open("docker/pins.toml", "rb"))
for key in sys.argv[1].split("."): v = v[key]
print(v)' "$1"; }

compile() { # compile NAME INPUT... : requirements/NAME.lock
    local output=requirements/$1.lock
    shift
    "$tools/venv/bin/uv" pip compile --quiet --generate-hashes --no-annotate --python-version "$(pin closure.rocm.python)" \
        --python-platform "x86_64-manylinux_$(pin closure.rocm.glibc)" --exclude-newer "$(pin closure.rocm.as_of)" \
        --custom-compile-command "requirements/lock_rocm.sh" --output-file "$output" "$@"
    if grep -nE '://' "$output"; then
        echo "error: $output names an address (lines above)" >&2
        return 1
    fi
}

compile rocm pyproject.toml requirements/rocm.in
compile rocm-build requirements/rocm-build.in --constraint requirements/rocm.lock
