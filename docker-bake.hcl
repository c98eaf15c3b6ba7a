# Structure only: no version stands here. `megamoe pins bake` writes the build arguments from docker/pins.toml into .state/bake.json:
#   megamoe pins bake --mirror DIR && docker buildx bake -f docker-bake.hcl -f .state/bake.json rocm
# For target reference, wheelhouse/ must hold the wheels of requirements/{engine,build}.lock; docker/build_reference.sh does all of
# it by itself, on engines without BuildKit too.
variable "TAG" {
  default = "current"
}

group "default" {
  targets = ["rocm", "reference"]
}

target "_common" {
  context    = "."
  dockerfile = "docker/Dockerfile"
  network    = "none"
  # The image's index holds build times when it carries attestations: compare the platform's manifest, or build with both off.
  attest = ["type=provenance,mode=max"]
}

# An OCI layout in a file: an engine's own image store cannot unpack and rewrite times in one go. Load it with `docker load`, or push it
# with a client such as skopeo; with a registry at hand, --set '*.output=type=registry,rewrite-timestamp=true' does both.
target "rocm" {
  inherits = ["_common"]
  target   = "rocm"
  tags     = ["megamoe:${TAG}"]
  output   = ["type=oci,dest=.state/megamoe-${TAG}.oci.tar,rewrite-timestamp=true"]
}

target "reference" {
  inherits = ["_common"]
  target   = "reference"
  tags     = ["megamoe-reference:${TAG}"]
  output   = ["type=oci,dest=.state/megamoe-reference-${TAG}.oci.tar,rewrite-timestamp=true"]
}
