#!/usr/bin/env bash
# What a person would ask of a built image, asked of it: identity, drift, refusals, users, read-only root, signals. Needs an engine.
#   tests/image/stand_in/check_image.sh IMAGE
# Prints one line per check and exits 1 when one does not hold.
set -uo pipefail
image=$1 failed=0
# No network is needed, and a nested engine may have no bridge. The user and the root are those of the documented command.
run=(docker run --rm --network none --read-only --tmpfs /tmp --tmpfs /run/megamoe/status:uid=10001 --tmpfs /var/cache/megamoe:uid=10001,exec)

check() { # WHAT EXPECTED_EXIT EXPECTED_TEXT COMMAND...
    local what=$1 want=$2 text=$3 out rc
    shift 3
    out=$("$@" 2>&1)
    rc=$?
    if [[ $rc == "$want" && $out == *"$text"* ]]; then
        echo "ok      $what"
    else
        echo "FAILED  $what: exit $rc (expected $want), looked for '$text' in: ${out:0:600}"
        failed=1
    fi
}

check "runs as 10001 with no other rights" 0 "uid=10001 gid=10001" "${run[@]}" "$image" id
check "says what it is and that it is as built" 0 "are as built" "${run[@]}" "$image" version
check "an edited file is drift, exit 1" 1 "file_drift" "${run[@]}" --volume /etc/hostname:/opt/megamoe/flydsl/kernels/mega_moe/epilogue.py:ro "$image" version
check "an edited image does not serve" 2 "file_drift" "${run[@]}" --volume /etc/hostname:/opt/megamoe/flydsl/kernels/mega_moe/epilogue.py:ro "$image" serve
check "serve without a device is refused" 2 "device_missing" "${run[@]}" "$image" serve --model /models
check "flags alone mean serve" 2 "no weight was read" "${run[@]}" "$image" --model /models
check "a stand-in image is refused" 2 "stand_in_image" "${run[@]}" "$image" serve
check "COMPILE_ONLY is refused" 2 "env_forbidden" "${run[@]}" --env COMPILE_ONLY=1 "$image" serve
check "an inherited MORI_SHMEM_MODE is refused" 2 "heap_mode" "${run[@]}" --env MORI_SHMEM_MODE=ISOLATION \
    --env ATOM_USE_FLYDSL=1 --env ATOM_USE_FLYDSL_FUSED=1 "$image" serve --model /models
check "64 MiB of /dev/shm are refused" 2 "shm_small" "${run[@]}" --ipc private "$image" serve
check "an unwritable cache is named" 2 "not_writable" docker run --rm --network none --read-only "$image" serve
check "the plan answers inside" 0 "deepseek-v4-pro" "${run[@]}" --volume "$(cd "$(dirname "$0")/../../.." && pwd)/docker/single-node.yml:/d.yml:ro" "$image" plan /d.yml
check "status without evidence is no evidence" 5 "" "${run[@]}" "$image" status
check "health fails where nothing serves" 1 "" "${run[@]}" "$image" health
check "anything else is executed" 7 "" "${run[@]}" "$image" bash -c 'exit 7'
check "the bill of materials is CycloneDX and whole" 0 "sbom ok" "${run[@]}" "$image" python -c '
import json
b = json.load(open("/opt/megamoe/sbom.cdx.json"))
names = {c["name"] for c in b["components"]}
assert b["bomFormat"] == "CycloneDX" and {"torch", "flydsl", "atom", "amd-aiter", "amd-mori-nightly", "aiter", "rocm/pytorch", "libc6"} <= names
print("sbom ok", len(b["components"]))'
check "the label counts the kernels that are there" 0 "same" bash -c "
    label=\$(docker image inspect --format '{{ index .Config.Labels \"io.megamoe.aot.kernels\" }}' $image)
    have=\$(${run[*]} $image bash -c 'find /opt/megamoe/kernels -name \"*.pkl\" | wc -l')
    [[ \$label == \$have && \$have -gt 0 ]] && echo same \$have"
check "no build tool is served" 0 "none" "${run[@]}" "$image" python -c '
from importlib.metadata import distributions
names = {d.metadata["Name"].lower() for d in distributions()}
assert not names & {"hatchling", "setuptools-scm", "wheel"}, names & {"hatchling", "setuptools-scm", "wheel"}
print("none")'
check "aiter does not replace flydsl" 0 "0.2.4+g8acf56d7" "${run[@]}" "$image" python -c '
from importlib.metadata import version
print(version("flydsl"))'

started=$SECONDS
name=$(docker run --detach --network none --read-only --tmpfs /tmp "$image" sleep 600)
docker stop --time 30 "$name" >/dev/null
code=$(docker inspect --format '{{ .State.ExitCode }}' "$name")
docker rm "$name" >/dev/null
if ((SECONDS - started < 20)) && [[ $code == 143 ]]; then echo "ok      SIGTERM ends it, exit 143"; else
    echo "FAILED  SIGTERM: exit $code after $((SECONDS - started)) s"
    failed=1
fi
exit "$failed"
