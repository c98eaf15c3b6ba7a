#!/usr/bin/env bash
# Post-deploy validation of an OpenAI-compatible endpoint: smoke, gsm8k, gate, report; one exit code (the first that is not 0).
#   validate.sh URL --dataset FILE [--policy P] [--out DIR] [OPTION VALUE]...
#     for smoke     --inspect F --max-model-len N --max-batched N
#     for gsm8k     --fewshot F --concurrency N --limit N --endpoint E --num-fewshot N --max-gen-toks N --max-retries N
#                   --server-started T --image-created T --image-digest D
#     for the gate  --baseline DIR --further DIR --further-baseline DIR
#     for several   --model M --api-key-file F --deploy F --status-dir D --status-command C --timeout S
#     for the report --facts F --title T
# Needs the command `megamoe` (pip install .). lm-evaluation-harness's environment is made by setup_lm_eval.sh beside this
# script when it is missing (said aloud). The API key is read from MEGAMOE_API_KEY or a file, never from an argument.
set -euo pipefail

usage() { sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
refuse() {
    echo "error: $1" >&2
    echo "  why: $2" >&2
    echo "  fix: $3" >&2
    exit 2
}
if [[ $# -eq 0 ]]; then usage >&2; exit 2; fi
if [[ $1 == -h || $1 == --help ]]; then usage; exit 0; fi
url=$1
shift
policy=v4-pro-fused out=validation smoke=() gsm8k=() gate=() report=() dataset=
while [[ $# -gt 0 ]]; do
    case $1 in
        --policy | --out | --dataset | --inspect | --max-model-len | --max-batched | --fewshot | --concurrency | --limit | \
            --endpoint | --num-fewshot | --max-gen-toks | --max-retries | --server-started | --image-created | \
            --image-digest | --baseline | --further | --further-baseline | --model | --api-key-file | --deploy | \
            --status-dir | --status-command | --timeout | --facts | --title) ;;
        *) refuse "unknown option $1" "it would be left out without a word" "validate.sh --help lists the options" ;;
    esac
    if [[ $# -lt 2 ]]; then refuse "$1 needs a value" "the next word is its value" "write $1 VALUE"; fi
    case $1 in
        --policy) policy=$2 ;;
        --out) out=$2 ;;
        --dataset) dataset=$2 gsm8k+=("$1" "$2") ;;
        --baseline | --further | --further-baseline) gate+=("$1" "$2") ;;
        --inspect | --max-model-len | --max-batched) smoke+=("$1" "$2") ;;
        --model | --api-key-file | --deploy | --status-dir | --status-command | --timeout)
            smoke+=("$1" "$2") gsm8k+=("$1" "$2") ;;
        --facts | --title) report+=("$1" "$2") ;;
        *) gsm8k+=("$1" "$2") ;;
    esac
    shift 2
done
if [[ -z $dataset ]]; then
    refuse "--dataset is missing" "the accuracy gate asks questions from a file; nothing is downloaded" \
        "give GSM8K's test file (1,319 lines of JSON with question and answer)"
fi
if ! command -v megamoe >/dev/null; then
    echo "error: the command megamoe is not on PATH" >&2
    echo "  why: every step of the validation is one of its verbs" >&2
    echo "  fix: pip install . in a checkout of this repository" >&2
    exit 4
fi
if ! mkdir -p "$out" || ! touch "$out/.writable"; then
    refuse "$out cannot be written" "the evidence has to be kept" "choose another --out"
fi
rm -f "$out/.writable"
exit_code=0 envelopes=()

step() { # step NAME COMMAND...: keeps the JSON and returns the command's code
    local name=$1 code=0
    shift
    echo "== $name" >&2
    "$@" --json >"$out/$name.json" || code=$?
    return "$code"
}

say() { # say NAME CODE: what the step found; remembers the first code that is not 0
    envelopes+=("$out/$1.json")
    # Two spaces of indent: the envelope's own keys, before those of its findings.
    sed -n -e 's/^  "status": "\(.*\)",$/'"$1"': \1/p' -e 's/^  "summary": "\(.*\)",$/  \1/p' "$out/$1.json"
    if [[ $exit_code -eq 0 ]]; then exit_code=$2; fi
}

ask() {
    step gsm8k megamoe gsm8k "$url" --policy "$policy" --out "$out/gsm8k" ${gsm8k[@]+"${gsm8k[@]}"}
}

code=0
step smoke megamoe smoke "$url" ${smoke[@]+"${smoke[@]}"} || code=$?
say smoke "$code"
# A later step that depends on a failed one does not run; the report is written whatever happened.
if [[ $code -eq 0 ]]; then
    ask || code=$?
    if [[ $code -eq 4 ]] && grep -q '"code": "lm_eval_missing"' "$out/gsm8k.json"; then
        code=0
        bash "$(dirname "${BASH_SOURCE[0]}")/setup_lm_eval.sh" >&2 && ask || code=$?
    fi
    say gsm8k "$code"
    # An early stop and a partial run are for the gate to judge; what was refused before it began is not.
    if [[ -f $out/gsm8k/run.json && ($code -eq 0 || $code -eq 1) ]]; then
        code=0
        step gate megamoe gate --policy "$policy" --result "$out/gsm8k" --run "$out/gsm8k/run.json" \
            ${gate[@]+"${gate[@]}"} || code=$?
        say gate "$code"
        if [[ $code -eq 5 ]]; then exit_code=5; fi # no evidence outranks the client's own failure
    fi
fi
run_dir=()
if [[ -f $out/gsm8k/run.json ]]; then run_dir=(--run-dir "$out/gsm8k"); fi
code=0
megamoe report "${envelopes[@]}" --out "$out" ${run_dir[@]+"${run_dir[@]}"} ${report[@]+"${report[@]}"} >&2 || code=$?
if [[ $code -eq 0 ]]; then
    echo "report: $out/report.html"
elif [[ $exit_code -eq 0 ]]; then
    exit_code=$code
fi
exit "$exit_code"
