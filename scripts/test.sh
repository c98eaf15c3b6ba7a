#!/usr/bin/env bash
# Runs the tests on a clean checkout; installs what it needs first. Where a container engine may be used, a rehearsal and
# the most telling live tests follow (about ten more minutes each way); `--all` demands an engine and runs every one.
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
if [[ ${1:-} != --all ]] && ! setup_rehearsal; then
    echo "not run: the live tests, for the reason above"
    exit
fi
# One after the other: they share this machine's ports, network and cores.
pytest -m "$live"
