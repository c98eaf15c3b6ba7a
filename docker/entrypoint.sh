#!/bin/bash
# What a container of this recipe does.
#   serve [FLAGS]                      start the engine (default; flags alone mean serve, too)
#   plan | status | version | smoke    the megamoe command of that name
#   health                             exit 0 when the server on MEGAMOE_PORT answers /health
#   anything else                      is run as it is
set -euo pipefail

serve() {
    # The rocm image: flags, environment, GPUs and the image itself are judged before any weight is read; then ATOM takes over.
    if [[ -n ${MEGAMOE_KERNELS:-} ]]; then exec python -m megamoe.image.launch "$@"; fi
    local args=("$@") arg
    for arg in "$@"; do
        case $arg in --server-port | --server-port=*) exec python -m "$MEGAMOE_ENGINE_MODULE" "${args[@]}" ;; esac
    done
    exec python -m "$MEGAMOE_ENGINE_MODULE" "${args[@]}" --server-port "$MEGAMOE_PORT"
}

case ${1:-serve} in
    serve) serve "${@:2}" ;;
    -*) serve "$@" ;;
    plan | status | version | smoke) exec megamoe "$@" ;;
    health)
        # No python: a health check that costs a second of a busy core makes the container look ill.
        exec 3<>"/dev/tcp/127.0.0.1/$MEGAMOE_PORT"
        printf 'GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3
        read -r _ code _ <&3
        [[ $code == 200 ]]
        ;;
    *) exec "$@" ;;
esac
