#!/usr/bin/env bash
# Builds the whole rocm target on a stand-in base, twice, from a mirror, without a network, and asks the result what a person would.
#   tests/image/stand_in/prove.sh MIRROR PYTHON312_PREFIX [WORKDIR]
# MIRROR: made by `megamoe pins mirror`; its base/ is not used. PYTHON312_PREFIX: any relocatable CPython 3.12.
# Needs root, debootstrap, an engine, gcc, about 40 GB, and package indexes for the base; the builds themselves see no network.
set -euo pipefail
cd "$(dirname "$0")/../../.."
mirror=$(realpath "$1") python=$(realpath "$2") work=$(realpath -m "${3:-.state/stand_in}")
here=tests/image/stand_in
source scripts/lib/base_image.sh
debian=$(base_mirror)
if [[ -z $debian ]]; then
    base_error "this machine's apt names no mirror of $BASE_SUITE" "the stand-in's Debian packages come from one" \
        "name it in MEGAMOE_DEBIAN_MIRROR"
    exit 4
fi
mkdir -p "$work"
megamoe=$(command -v megamoe)

docker image inspect mmimg-builder:1 >/dev/null 2>&1 || "$here/make_builder.sh" mmimg-builder:1 "$work"
# An engine with BuildKit in a container of its own: no --privileged, a volume for its store, and a network of its own: on the
# host's it would take the host engine's bridge for its own.
docker run --detach --name mmimg-buildd --cap-add SYS_ADMIN --cap-add NET_ADMIN --cap-add MKNOD --cap-add SYS_PTRACE \
    --security-opt seccomp=unconfined --security-opt apparmor=unconfined --cgroupns host --volume /sys/fs/cgroup:/sys/fs/cgroup:rw \
    --device-cgroup-rule 'a *:* rwm' --volume mmimg-docker:/var/lib/docker --volume "$work:$work" --volume "$mirror:$mirror" \
    --volume "$PWD:$PWD:ro" mmimg-builder:1 /usr/bin/tini -- bash -c '
        mount -o remount,rw /proc/sys
        mkdir -p /etc/docker
        echo "{\"features\":{\"containerd-snapshotter\":true}}" >/etc/docker/daemon.json
        exec dockerd >/var/log/dockerd.log 2>&1' >/dev/null
trap 'docker rm --force mmimg-buildd >/dev/null' EXIT
inner() { docker exec mmimg-buildd "$@"; }
until inner docker info >/dev/null 2>&1; do sleep 1; done

if ! inner docker image inspect mmimg-base:1 >/dev/null 2>&1; then
    # Whole or absent: one that an earlier run left is taken as it is.
    [[ -s $work/base.tar ]] || "$here/make_base.sh" "$work/base.tar" "$work" "$python" "$mirror"
    inner docker import --change "ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
        --change "ENV ROCM_PATH=/opt/rocm" "$work/base.tar" mmimg-base:1
    rm "$work/base.tar"
fi
if [[ ! -s $mirror/apt/SHA256SUMS ]]; then
    # The names that these packages have in Debian; Ubuntu's are in docker/pins.toml.
    mkdir -p "$work/apt"
    inner docker run --rm --network host --volume "$PWD/docker/rocm:/src:ro" --volume "$work/apt:/out" \
        --volume /etc/resolv.conf:/etc/resolv.conf:ro mmimg-base:1 bash -euc '
            echo "deb $1 trixie main" >/etc/apt/sources.list
            echo "deb $1 bookworm main" >/etc/apt/sources.list.d/bookworm.list
            bash /src/fetch_apt.sh /out now libgrpc++1.51 libgrpc29 libprotobuf32 libpci3 libnuma1 libibverbs1 tini' fetch "$debian"
    mv "$work/apt" "$mirror/apt"
fi

"$megamoe" pins bake --out "$work/bake.json" >&2
build() { # NAME [FLAG...]
    inner docker buildx bake --progress plain -f "$PWD/docker-bake.hcl" -f "$work/bake.json" rocm \
        --set "rocm.context=$PWD" --set "rocm.contexts.mirror=$mirror" --set rocm.args.ROCM_BASE=mmimg-base:1 \
        --set rocm.args.STAND_IN=allow --provenance=false --set "rocm.output=type=oci,dest=$work/$1.tar,rewrite-timestamp=true" \
        --metadata-file "$work/$1.json" "${@:2}" >"$work/$1.log" 2>&1 || { tail -n 30 "$work/$1.log" >&2 && return 1; }
    awk '/step .*:|kernels|as pinned|PASS/' "$work/$1.log"
}
build one
build two --no-cache
python3 - "$work" <<'PY'
import json
import sys
import tarfile
from pathlib import Path

work = Path(sys.argv[1])


def layers(name: str) -> list[str]:
    """Digests of the layers of an OCI archive's one image."""
    with tarfile.open(work / f"{name}.tar") as archive:
        read = lambda digest: json.load(archive.extractfile("blobs/" + digest.replace(":", "/")))  # noqa: E731
        index = json.load(archive.extractfile("index.json"))
        return [layer["digest"] for layer in read(index["manifests"][0]["digest"])["layers"]]


digests = [json.loads((work / f"{n}.json").read_text())["rocm"]["containerimage.digest"] for n in ("one", "two")]
one, two = layers("one"), layers("two")
print("digest", *digests, "EQUAL" if digests[0] == digests[1] else "DIFFERENT")
for number, (a, b) in enumerate(zip(one, two, strict=True)):
    if a != b:
        print(f"layer {number} differs: {a} {b}")
sys.exit(digests[0] != digests[1])
PY
inner docker load --input "$work/one.tar"
inner bash "$PWD/$here/check_image.sh" megamoe:current
