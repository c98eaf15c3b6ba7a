#!/usr/bin/env bash
# Runs the tests on a clean checkout; installs what it needs first, a container engine too. Behind the tests that need none
# a rehearsal is brought up and the most telling live tests run on it; `--all` runs every live test (an hour and more).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

live=live_ci
if [[ ${1:-} == --all ]]; then
    live="engine and not gpu"
fi
setup_environments
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1

ruff check .
pytest -n 2 --dist loadfile -m "not engine and not gpu"
# A machine on which no rehearsal can be brought up has not failed the tests, and has not passed these.
if ! { setup_rehearsal && python -m megamoe.rehearse.checks; }; then
    echo "not run: the live tests, since this machine cannot hold a rehearsal (the reason is above)"
    [[ ${1:-} != --all ]]
    exit
fi
# One after the other: they share this machine's ports, network and cores.
pytest -m "$live"
