#!/bin/bash
# Puts our edits into the pinned ATOM, checks that all that the adapter needs is there, and builds ATOM's wheel.
#   build_atom.sh TREE PINS OUT
set -euo pipefail
tree=$1 pins=$2 out=$3
version=$(python -c 'import sys, tomllib; print(tomllib.load(open(sys.argv[1], "rb"))["git"]["atom"]["version"])' "$pins")
megamoe patch apply --atom "$tree"
megamoe patch check --atom "$tree"
SETUPTOOLS_SCM_PRETEND_VERSION_FOR_ATOM=$version \
    python -m pip wheel --quiet --no-index --no-deps --no-build-isolation --no-cache-dir --wheel-dir "$out" "$tree"
# Upstream runs ATOM from its checkout, so a file that the wheel forgot would be missed by us alone. mesh is the Rust gateway, which
# is neither built nor used here.
python - "$tree" "$out"/atom-*.whl <<'PY'
import sys
import zipfile
from pathlib import Path

tree, wheel = Path(sys.argv[1]), zipfile.ZipFile(sys.argv[2])
packed = set(wheel.namelist())
missing = [
    name
    for path in sorted((tree / "atom").rglob("*"))
    if path.is_file()
    and not (name := path.relative_to(tree).as_posix()).startswith("atom/mesh/")
    and path.suffix not in {".md", ".pyc"}
    and name not in packed
]
print(f"{len(packed)} files in the wheel; not in it: {missing or 'nothing'}")
code = [name for name in missing if not name.endswith((".png", ".html", ".css", ".js"))]
sys.exit(f"error: the wheel lacks {code}" if code else 0)
PY
