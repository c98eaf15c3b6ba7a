#!/bin/bash
# Installs local wheels offline. No bytecode: install_wheels is called in every layer, compile_all once at the end.
#   install_wheels.sh WHEEL...
set -euo pipefail
exec python -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --root-user-action=ignore --force-reinstall "$@"
