#!/usr/bin/env bash
# Post-deploy validation of an OpenAI-compatible endpoint: smoke, gsm8k, gate, report; one exit code (the first that is not 0).
#   scripts/validate.sh URL --dataset FILE [--policy P] [--out DIR] [--fewshot F] [--baseline DIR] [--status-dir D]
#                       [--status-command C] [--model M] [--concurrency N] [--limit N] [--endpoint E] [--server-started T]
#                       [--image-created T] [--image-digest D] [--max-model-len N]
# Needs the command `megamoe` (pip install .) and lm-eval's environment (scripts/setup_lm_eval.sh). The API key is read from
# MEGAMOE_API_KEY.
set -euo pipefail

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0"; }
if [[ $# -eq 0 ]]; then usage >&2; exit 2; fi
if [[ $1 == -h || $1 == --help ]]; then usage; exit 0; fi
url=$1
shift
policy=v4-pro-fused out=validation smoke=() gsm8k=() gate=()
while [[ $# -gt 0 ]]; do
    if [[ $# -lt 2 ]]; then
        echo "error: $1 needs a value" >&2
        exit 2
    fi
    case $1 in
        --policy) policy=$2 ;;
        --out) out=$2 ;;
        --baseline) gate+=("$1" "$2") ;;
        --status-dir | --status-command | --max-model-len) smoke+=("$1" "$2") ;;
        --model) smoke+=("$1" "$2") gsm8k+=("$1" "$2") ;;
        --dataset | --fewshot | --concurrency | --limit | --endpoint | --server-started | --image-created | --image-digest)
            gsm8k+=("$1" "$2") ;;
        *)
            echo "error: unknown option $1" >&2
            usage >&2
            exit 2
            ;;
    esac
    shift 2
done
if ! command -v megamoe >/dev/null; then
    echo "error: the command megamoe is not on PATH" >&2
    echo "  why: every step of the validation is one of its verbs" >&2
    echo "  fix: pip install . in a checkout of this repository" >&2
    exit 4
fi
mkdir -p "$out"
exit_code=0 envelopes=()

step() { # step NAME COMMAND...: keeps the JSON, says the result, remembers the first code that is not 0
    local name=$1 code=0
    shift
    echo "== $name" >&2
    "$@" --json >"$out/$name.json" || code=$?
    envelopes+=("$out/$name.json")
    python3 -c 'import json,sys; b=json.load(open(sys.argv[1])); print(b["command"], b["status"].upper(), b["summary"], sep="  ")' \
        "$out/$name.json"
    if [[ $exit_code -eq 0 ]]; then exit_code=$code; fi
    return "$code"
}

run_dir=()
# A later step that depends on a failed one does not run; the report is written whatever happened.
if step smoke megamoe smoke "$url" ${smoke[@]+"${smoke[@]}"} &&
    step gsm8k megamoe gsm8k "$url" --policy "$policy" --out "$out/gsm8k" ${gsm8k[@]+"${gsm8k[@]}"}; then
    step gate megamoe gate --policy "$policy" --result "$out/gsm8k" --run "$out/gsm8k/run.json" ${gate[@]+"${gate[@]}"} ||
        echo "the gate did not approve" >&2
fi
if [[ -f $out/gsm8k/run.json ]]; then run_dir=(--run-dir "$out/gsm8k"); fi
megamoe report "${envelopes[@]}" --out "$out" ${run_dir[@]+"${run_dir[@]}"} >&2
echo "report: $out/report.html"
exit "$exit_code"
