#!/usr/bin/env bash
# Runs the tests on a clean checkout; installs what it needs first. Where a container engine already answers, a rehearsal
# and the most telling live tests follow, which take many minutes; `--all` sets an engine up and runs every live test.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

live=live_ci
if [[ ${1:-} == --all ]]; then
    live="engine and not gpu"
    setup_rehearsal
else
    setup_environments
fi
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1

ruff check .
pytest -n 2 --dist loadfile -m "not engine and not gpu"
if [[ ${1:-} != --all ]]; then
    if ! docker info >/dev/null 2>&1; then
        echo "not run: the live tests, since no container engine answers; scripts/test.sh --all sets one up"
        exit
    fi
    setup_rehearsal
fi
# One after the other: they share this machine's ports, network and cores.
pytest -m "$live"
