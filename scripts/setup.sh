# Sourced by scripts/rehearse.sh, or run by hand to prepare a machine: packages (announced), engine, virtual environment.
# shellcheck shell=bash
# shellcheck source-path=SCRIPTDIR/..
source "$(dirname "${BASH_SOURCE[0]}")/lib/venv.sh"

# setup_rehearsal: everything that `megamoe rehearse` needs on this machine. Narrates on stderr.
setup_rehearsal() {
    need_packages >&2 || return
    need_engine >&2 || return
    setup_environments
}

# setup_environments: ours and lm-evaluation-harness's own (their pins would fight), at once: pip uses one core.
setup_environments() {
    local harness status=0
    need_venv >&2 || return
    bash scripts/setup_lm_eval.sh >&2 &
    harness=$!
    ensure_venv .venv requirements/test.lock >&2 || status=$?
    wait "$harness" || status=$?
    return "$status"
}

# The package that brings each command; only what is missing is installed, and it is written down for rehearse-down.
need_packages() {
    local pair missing=()
    for pair in docker:docker.io debootstrap:debootstrap ssh:openssh-client ssh-keygen:openssh-client ip:iproute2 python3:python3; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
    done
    if only_a_client; then
        missing+=(docker.io)
    fi
    if ((${#missing[@]} == 0)); then
        return 0
    fi
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
    announce_install "${missing[@]}" || return
    mkdir -p .state
    printf '%s\n' "${missing[@]}" >>.state/installed-packages
}

# only_a_client: nothing answers, nothing refuses us, and there is no daemon that could be started (some machines bring
# the client alone). An engine at DOCKER_HOST is not ours to install.
only_a_client() {
    local said
    [[ -z ${DOCKER_HOST:-} ]] || return 1
    ! PATH="$PATH:/usr/sbin" command -v dockerd >/dev/null || return 1
    ! said=$(docker info 2>&1 >/dev/null) || return 1
    [[ $said != *"permission denied"* ]]
}

need_engine() {
    local last
    if docker info >/dev/null 2>&1; then
        return 0
    fi
    last=$(docker info 2>&1 >/dev/null | tail -n 1)
    if [[ $last == *"permission denied"* ]]; then
        echo "error: the container engine may not be used: $last" >&2
        echo "  why: nodes and images of the rehearsal are containers" >&2
        echo "  fix: run this as root, or: sudo usermod --append --groups docker $(id -un), then log in again" >&2
        return 4
    fi
    if [[ $(id -u) -ne 0 ]]; then
        echo "error: the container engine does not answer: $last" >&2
        echo "  why: nodes and images of the rehearsal are containers" >&2
        echo "  fix: sudo systemctl start docker (or: sudo service docker start)" >&2
        return 4
    fi
    echo "starting the container engine"
    if [[ -d /run/systemd/system ]]; then
        # Its answer is not needed: the wait below decides, and says what is wrong.
        systemctl start docker || echo "systemctl start docker ended with $?"
    else
        # Debian's init script raises limits first, and ends there where a container or a small VM may not (CAP_SYS_RESOURCE).
        service docker start >/dev/null 2>&1 || {
            echo "service docker start ended with $?, starting dockerd itself (log: /var/log/docker.log)"
            setsid dockerd >>/var/log/docker.log 2>&1 </dev/null &
        }
    fi
    local _
    for _ in $(seq 30); do
        if docker info >/dev/null 2>&1; then
            return 0
        fi
        sleep 1
    done
    echo "error: the container engine did not start within 30 s: $(docker info 2>&1 >/dev/null | tail -n 1)" >&2
    echo "  why: nodes and images of the rehearsal are containers" >&2
    echo "  fix: see its log (journalctl -u docker, or /var/log/docker.log)" >&2
    return 4
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
    set -euo pipefail
    cd "$(dirname "$0")/.."
    setup_rehearsal
fi
