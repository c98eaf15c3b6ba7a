#!/usr/bin/env bash
# Runs the tests on a clean checkout; installs what it needs first. `--all` adds the live ones, which start containers.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

ensure_venv .venv requirements/test.lock
if [[ ${1:-} == --all ]]; then
    setup_rehearsal
fi
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1

ruff check .
pytest -n 2 --dist loadfile -m "not engine and not gpu"
if [[ ${1:-} == --all ]]; then
    # One after the other: they share this machine's ports, network and cores.
    pytest -m "engine and not gpu"
fi
