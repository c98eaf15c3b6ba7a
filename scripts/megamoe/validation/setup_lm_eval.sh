#!/usr/bin/env bash
# Makes lm-evaluation-harness's own environment from the lock beside this script (hashes checked); works from a
# checkout and from an installed `megamoe`.
#   setup_lm_eval.sh          into $MEGAMOE_LM_EVAL_VENV; else .venv-lm-eval of the checkout, else ~/.cache/megamoe/lm-eval
#   setup_lm_eval.sh --lock   resolves the lock anew (checkout only)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lock=$here/lm-eval.lock

if [[ ${1:-} == --lock ]]; then
    cd "$here"
    tools=$(mktemp -d)
    trap 'rm -rf "$tools"' EXIT
    python3 -m venv "$tools/venv"
    "$tools/venv/bin/pip" install --quiet pip-tools
    # Extras are kept: pip's hash mode wants them named (typepy[datetime]).
    CUSTOM_COMPILE_COMMAND="scripts/setup_lm_eval.sh --lock" "$tools/venv/bin/pip-compile" --quiet --generate-hashes \
        --allow-unsafe --no-strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
        --output-file lm-eval.lock lm-eval.in
    exit
elif [[ $# -gt 0 ]]; then
    echo "error: unknown argument $1" >&2
    echo "  why: this script takes --lock or nothing" >&2
    echo "  fix: name the place of the environment in MEGAMOE_LM_EVAL_VENV" >&2
    exit 2
fi

# The same rule as megamoe.gsm8k.run.default_venv.
if [[ -f $here/../../../pyproject.toml ]]; then
    default=$(cd "$here/../../.." && pwd)/.venv-lm-eval
else
    default=${XDG_CACHE_HOME:-$HOME/.cache}/megamoe/lm-eval
fi
venv=${MEGAMOE_LM_EVAL_VENV:-$default}
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
if ! mkdir -p "$(dirname "$venv")" || ! python3 -m venv --clear "$venv"; then
    echo "error: no virtual environment could be made at $venv" >&2
    echo "  why: lm-evaluation-harness is kept apart from the CLI" >&2
    echo "  fix: make the place writable, or install python3-venv (apt-get install python3-venv)" >&2
    exit 4
fi
# --no-deps: the lock is the whole closure, and pip's hash mode rejects a pinned package that is asked for with an extra.
if ! "$venv/bin/pip" install --quiet --no-deps --require-hashes -r "$lock"; then
    echo "error: $lock could not be installed into $venv" >&2
    echo "  why: a package is not reachable, or its hash is not the locked one" >&2
    echo "  fix: check the network to the package index, then run this again" >&2
    exit 3
fi
"$venv/bin/python" -c 'import lm_eval, aiohttp, tenacity; from importlib.metadata import version; print("lm-eval", version("lm-eval"))'
echo "$stamp" >"$venv/.stamp"
