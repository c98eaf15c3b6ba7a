#!/usr/bin/env bash
# Makes lm-evaluation-harness's own environment from requirements/lm-eval.lock (hashes checked).
#   scripts/setup_lm_eval.sh          into $MEGAMOE_LM_EVAL_VENV, or .venv-lm-eval of this checkout
#   scripts/setup_lm_eval.sh --lock   resolves the lock anew
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-} == --lock ]]; then
    tools=$(mktemp -d)
    trap 'rm -rf "$tools"' EXIT
    python3 -m venv "$tools/venv"
    "$tools/venv/bin/pip" install --quiet pip-tools
    # Extras are kept: pip's hash mode wants them named (typepy[datetime]).
    CUSTOM_COMPILE_COMMAND="scripts/setup_lm_eval.sh --lock" "$tools/venv/bin/pip-compile" --quiet --generate-hashes \
        --allow-unsafe --no-strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
        --output-file requirements/lm-eval.lock requirements/lm-eval.in
    exit
fi

venv=${MEGAMOE_LM_EVAL_VENV:-.venv-lm-eval}
lock=requirements/lm-eval.lock
stamp=$(sha256sum "$lock" | cut -d' ' -f1)
if [[ -f $venv/.stamp && $(<"$venv/.stamp") == "$stamp" ]]; then
    echo "$venv is up to date with $lock"
    exit 0
fi
if [[ -e $venv && ! -f $venv/pyvenv.cfg && -n $(ls -A "$venv") ]]; then
    echo "error: $venv exists and is not a virtual environment" >&2
    echo "  why: making one there would delete what it holds" >&2
    echo "  fix: choose another directory in MEGAMOE_LM_EVAL_VENV" >&2
    exit 2
fi
echo "making $venv from $lock (hashes checked)"
python3 -m venv --clear "$venv"
# --no-deps: the lock is the whole closure, and pip's hash mode rejects a pinned package that is asked for with an extra.
if ! "$venv/bin/pip" install --quiet --no-deps --require-hashes -r "$lock"; then
    echo "error: $lock could not be installed into $venv" >&2
    echo "  why: a package is not reachable, or its hash is not the locked one" >&2
    echo "  fix: check the network to the package index, then run this again" >&2
    exit 3
fi
"$venv/bin/python" -c 'import lm_eval, aiohttp, tenacity; from importlib.metadata import version; print("lm-eval", version("lm-eval"))'
echo "$stamp" >"$venv/.stamp"
