#!/usr/bin/env bash
# The script itself travels with the CLI package, so that an installed `megamoe` has it, too.
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/megamoe/validation/validate.sh" "$@"
