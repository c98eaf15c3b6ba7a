#!/usr/bin/env bash
# From a bare machine to a validated service on containers that stand for hosts; installs what is missing first.
#   scripts/rehearse.sh [--nodes N] [--fault F] [--selftest on|off] [--dataset FILE] [--json]
#   scripts/rehearse.sh --down      removes everything that a rehearsal made
# `make rehearse` calls this with NODES, FAULT, SELFTEST and DATASET.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

# early_checks [--options-only] OPTION...: what can be refused with the system's Python alone.
early_checks() {
    if command -v python3 >/dev/null; then
        PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=scripts:atom_patch python3 -m megamoe.rehearse.checks "$@"
    fi
}

# A slip in the options is refused before anything is installed, an unfit machine before the environments take their minutes.
early_checks --options-only "$@"
if [[ " $* " != *" --down "* && ! -x .venv/bin/megamoe ]]; then
    need_packages >&2
    need_engine >&2
    early_checks "$@"
fi
setup_rehearsal
# exec: Ctrl-C reaches one process, which stops Ansible in order and says what was left.
exec .venv/bin/megamoe rehearse "$@"
