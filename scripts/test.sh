#!/usr/bin/env bash
# Runs the tests on a clean checkout; installs what it needs first. `--all` adds the long live rehearsals.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/lib/venv.sh

ensure_venv .venv requirements/test.lock
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1

ruff check .
if [[ ${1:-} == --all ]]; then
    exec pytest -n 2 --dist loadfile
fi
exec pytest -n 2 --dist loadfile -m "not engine and not gpu"
