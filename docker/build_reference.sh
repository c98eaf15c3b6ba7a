#!/usr/bin/env bash
# Builds the reference image without a registry and prints its image ID on stdout (all else goes to stderr).
#   docker/build_reference.sh [--tag TAG] [--base BASE_TAG]
# 1. a wheelhouse, resolved here with hashes; 2. a Debian base by debootstrap, unless it is there; 3. docker build, offline.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/lib/base_image.sh

tag=megamoe-reference:current
base=
fail() { # CODE WHAT WHY FIX
    base_error "${@:2}"
    exit "$1"
}
while (($#)); do
    case $1 in
        --tag | --base)
            [[ -n ${2:-} ]] || fail 2 "$1 without a value" "it names an image" "docker/build_reference.sh [--tag TAG] [--base BASE_TAG]"
            if [[ $1 == --tag ]]; then tag=$2; else base=$2; fi
            shift 2
            ;;
        *) fail 2 "unknown argument $1" "nothing was built" "docker/build_reference.sh [--tag TAG] [--base BASE_TAG]" ;;
    esac
done

BASE_PACKAGES=(python3 tini)
BUILD_NEEDS_MIB=5000 # base, closure, install and result layers, before the intermediate ones are removed
state=${MEGAMOE_STATE:-.state}
mkdir -p "$state"
started=$SECONDS

docker info >/dev/null 2>&1 || fail 4 "the container engine does not answer" "the image is built with it" \
    "start it (systemctl start docker, or dockerd), and see that you may use it (docker info)"
root_dir=$(docker info --format '{{.DockerRootDir}}')
if [[ -d $root_dir ]]; then
    free=$(($(df --output=avail -k "$root_dir" | tail -n 1) / 1024))
    ((free >= BUILD_NEEDS_MIB)) || fail 4 "$free MiB are free under $root_dir, $BUILD_NEEDS_MIB MiB are needed" \
        "the build would stop half-way" "free some space there"
fi

# 1. wheelhouse: one folder per pair of locks, complete or absent
locks=$(cat requirements/engine.lock requirements/build.lock | sha256sum | cut -c1-12)
wheelhouse=$state/wheelhouse-$locks
if [[ ! -d $wheelhouse ]]; then
    echo "filling $wheelhouse (hashes checked)" >&2
    partial=$(mktemp -d "$wheelhouse.XXXXXX") || fail 4 "no folder $wheelhouse.* can be made" "the wheels are gathered there" \
        "see the line above (space, permissions), or point MEGAMOE_STATE at another file system"
    trap 'rm -rf "$partial"' EXIT
    target=()
    if ! python3 -c 'import platform, sys; sys.exit((sys.version_info[:2], platform.machine()) != ((3, 11), "x86_64"))'; then
        # The base has Python 3.11 on x86-64, whatever runs here.
        target=(--python-version 3.11 --implementation cp --abi cp311)
        for glibc in 2_36 2_35 2_34 2_31 2_28 2_27 2_24 2_17 2_12 2_5; do target+=(--platform "manylinux_${glibc}_x86_64"); done
    fi
    for lock in engine build; do
        python3 -m pip download --quiet --no-deps --only-binary :all: --require-hashes "${target[@]}" \
            --dest "$partial" -r "requirements/$lock.lock" >&2 ||
            fail 3 "a wheel of requirements/$lock.lock could not be fetched" "the image is installed offline, from these files alone" \
                "check the network to the package index; for torch, put its CPU wheel where pip's find-links points"
    done
    chmod 755 "$partial"
    mv -T "$partial" "$wheelhouse"
    trap - EXIT
fi

# 2. base
: "${base:=megamoe-base:$(base_recipe "${BASE_PACKAGES[@]}" | cut -c1-12)}"
ensure_base_image "$base" "${BASE_PACKAGES[@]}"

# 3. image. The context is a tar stream: names sorted, times fixed, nothing that the allow-list does not name.
pin() { python3 -c 'import sys, tomllib; v = tomllib.load(open("docker/pins.toml", "rb"))
for key in sys.argv[1].split("."): v = v[key]
print(v)' "$1"; }
# By the command line's own formula, so that the label says what `megamoe version` says inside.
edits=$(PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=scripts:atom_patch python3 -c 'from pathlib import Path
from megamoe.version.identity import edits_sha256
print(edits_sha256(Path("atom_patch/edits")))')
epoch=$(pin source_date_epoch)
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
if [[ $revision != unknown && -n $(git status --porcelain -- pyproject.toml scripts/megamoe atom_patch docker requirements tests/golden) ]]; then
    revision+=-dirty
fi
echo "building $tag on $base" >&2
log=$state/build_reference.log
if ! tar --create --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --exclude=__pycache__ --exclude='*.pyc' \
    --transform 's,^docker/Dockerfile\.dockerignore$,.dockerignore,' --transform "s,^wheelhouse-$locks,wheelhouse," \
    pyproject.toml README.md requirements/engine.lock requirements/build.lock scripts/megamoe atom_patch tests/golden \
    docker/Dockerfile docker/Dockerfile.dockerignore docker/entrypoint.sh docker/pins.toml docker/profiles docker/reference_engine \
    --directory "$state" "wheelhouse-$locks" |
    docker build --file docker/Dockerfile --target reference --network none --force-rm --tag "$tag" \
        --build-arg "REFERENCE_BASE=$base" --build-arg "REVISION=$revision" \
        --build-arg "ATOM_COMMIT=$(pin git.atom.commit)" --build-arg "FLYDSL_COMMIT=$(pin git.flydsl.commit)" \
        --build-arg "MODEL_GGUF_SHA256=$(pin model.smollm2.gguf_sha256)" \
        --build-arg "ENGINE_LOCK_SHA256=$(sha256sum requirements/engine.lock | cut -d' ' -f1)" \
        --build-arg "EDITS_SHA256=$edits" - >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    fail 1 "docker build failed (whole log: $log)" "there is no image $tag" "read the last lines above"
fi
echo "built $tag in $((SECONDS - started)) s, $(($(docker image inspect --format '{{.Size}}' "$tag") / 1000000)) MB" >&2
docker image inspect --format '{{.Id}}' "$tag"
