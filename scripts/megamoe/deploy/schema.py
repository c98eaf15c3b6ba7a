"""pydantic models of DEPLOY. Types only: what fits together is judged in megamoe.plan.

Unknown keys are errors, types are strict ("8" is not 8), so that a typo never becomes a default.
`megamoe plan --schema` prints these models as JSON Schema. Flag spellings: ROCm/ATOM atom/model_engine/arg_utils.py
at the pinned commit.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

PORT, INTERNAL_PORT = 8000, 8006
DP_PORT = 29500  # ROCm/ATOM atom/config.py: the data-parallel group always takes it

class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Model(_Strict):
    """What is served, and from where."""

    path: str = Field(description="absolute host directory of the checkpoint; mounted read-only at the same path")
    profile: str = Field(description="docker/profiles/NAME.toml: geometry, limits and environment contract")
    weights: Literal["mxfp4", "fp8", "bf16", "fp16"] = Field(description="format of the routed experts")
    revision: str | None = Field(default=None, description="pinned revision of the checkpoint, for verify-model")


class Gpu(_Strict):
    """The accelerators of one host; a host with none (engine: reference) gives count 0."""

    arch: str = Field(description="gfx name, such as gfx950; cpu for engine: reference")
    count: int = Field(ge=0, le=64, description="GPUs of the host that this container gets")
    vram_gib: float = Field(ge=0, le=4096, description="memory of one GPU, GiB")


class Args(_Strict):
    """Engine arguments; a key left out keeps the engine's default unless a rule says that it must be given."""

    tensor_parallel: int = Field(default=1, ge=1, le=64, description="-tp; with DP attention this is the rank count")
    data_parallel: int = Field(default=1, ge=1, le=64, description="-dp")
    prefill_context_parallel: int = Field(default=1, ge=1, le=64, description="-pcp")
    enable_dp_attention: bool = Field(default=False, description="--enable-dp-attention")
    enable_expert_parallel: bool = Field(default=False, description="--enable-expert-parallel")
    moe_backend: Literal["mega", "standard"] = Field(default="standard", description="mega = FlyDSL's fused MegaMoE")
    max_num_batched_tokens: int | None = Field(default=None, ge=1, le=1 << 30, description="tokens per rank and step")
    max_num_seqs: int | None = Field(default=None, ge=1, le=1 << 20, description="sequences per rank")
    max_model_len: int | None = Field(default=None, ge=1, le=1 << 30, description="tokens per request")
    kv_cache_dtype: Literal["bf16", "fp8"] = Field(default="bf16", description="--kv_cache_dtype")
    index_cache_dtype: Literal["bf16", "fp8"] | None = Field(default=None, description="--index-cache-dtype")
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1, description="engine's share of each GPU's memory")
    port: int = Field(default=PORT, ge=1, le=65535, description="HTTP port (--server-port)")
    internal_port: int = Field(default=INTERNAL_PORT, ge=1, le=65535, description="rendezvous port of ranks (--port)")
    host: str = Field(default="0.0.0.0", description="address that the HTTP server binds")
    enforce_eager: bool = Field(default=False, description="--enforce-eager: no graphs")
    cudagraph_mode: Literal["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"] | None = Field(default=None)
    cudagraph_capture_sizes: list[int] | None = Field(default=None, max_length=256, description="decode batch sizes")
    level: int | None = Field(default=None, ge=0, le=3, description="compile level")
    block_size: int | None = Field(default=None, ge=1, le=1024, description="KV block, tokens; V4 forces 128")
    enable_prefix_caching: bool | None = Field(default=None, description="engine default: on")
    enable_chunked_prefill: bool | None = Field(default=None, description="engine default: on")
    long_prefill_token_threshold: int | None = Field(default=None, ge=0, le=1 << 30, description="0 = no cap")
    attn_prefill_chunk_size: int | None = Field(default=None, ge=1, le=1 << 30)
    method: Literal["mtp", "eagle3", "dspark"] | None = Field(default=None, description="speculative decoding")
    num_speculative_tokens: int = Field(default=1, ge=1, le=16)
    draft_model: str | None = Field(default=None, description="absolute path; eagle3 only")
    enable_tbo: Literal["prefill", "all"] | None = Field(default=None, description="two-batch overlap")
    all2all_backend: Literal["high-throughput", "low-latency"] | None = Field(default=None)
    dp_load_balance: Literal["round_robin", "least_requests", "least_tokens"] | None = Field(default=None)
    eplb_enable: bool = Field(default=False, description="--eplb-enable")
    eplb_config: dict[str, Any] | None = Field(default=None)
    load_dummy: Literal["empty", "zero", "xavier"] | None = Field(default=None)
    hf_overrides: dict[str, Any] | None = Field(default=None)
    online_quant_config: dict[str, Any] | None = Field(default=None)
    trust_remote_code: bool = Field(default=False)


class Ulimit(_Strict):
    soft: int = Field(ge=-1, le=1 << 62)
    hard: int = Field(ge=-1, le=1 << 62)


class Container(_Strict):
    """How the container is run. A key left out takes the profile's default, then the value shown here."""

    engine: Literal["docker", "podman"] = Field(default="docker")
    rootless: bool = Field(default=False, description="the engine runs without root: groups need keep-groups")
    name: str = Field(default="megamoe", pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$")
    ipc: str = Field(default="host", description="host, private or shareable")
    shm_size: str | int | None = Field(default=None, description="/dev/shm of a private ipc namespace, such as 16g")
    init: bool = Field(default=True, description="a reaping PID 1, so that dead ranks do not hold VRAM")
    stop_timeout: int = Field(default=60, ge=0, le=86400, description="seconds between SIGTERM and SIGKILL")
    devices: list[str] | None = Field(default=None, max_length=128, description="host device nodes, or a CDI name")
    group_add: list[str | int] | None = Field(
        default=None, max_length=64, description="left out: the host's groups of /dev/kfd and renderD*"
    )
    user: str | None = Field(default=None, description="uid:gid, numeric")
    ulimits: dict[str, int | Ulimit] | None = Field(default=None, max_length=32)
    security_opts: list[str] | None = Field(default=None, max_length=32)
    cap_add: list[str] | None = Field(default=None, max_length=64)
    cap_drop: list[str] | None = Field(default=None, max_length=64)
    privileged: bool = Field(default=False)
    read_only: bool = Field(default=False)
    tmpfs: list[str] = Field(default_factory=list, max_length=32, description="PATH[:OPTIONS]")
    volumes: list[str] = Field(default_factory=list, max_length=64, description="HOST:CONTAINER[:OPTIONS]")
    status_dir: str = Field(default="/run/megamoe/status", description="host directory for the adapter's evidence")
    cache_dir: str | None = Field(default=None, description="host directory; one sub-directory per image digest")
    network_mode: str = Field(default="host", description="host, bridge, none or a network's name")
    ports: list[str] = Field(default_factory=list, max_length=32, description="[ADDRESS:]HOST:CONTAINER, not with host")
    labels: dict[str, str] = Field(default_factory=dict, max_length=64)
    restart_policy: str = Field(default="no", description="no, on-failure[:N], unless-stopped or always")


class Deploy(_Strict):
    """One deployment on one host."""

    host: str | None = Field(default=None, description="inventory name, for messages")
    engine: Literal["atom", "reference"] = Field(description="atom on GPUs, or the CPU reference engine")
    image: str = Field(description="NAME@sha256:DIGEST, or sha256:ID of a loaded archive")
    image_tag_is_comment: bool = Field(default=False, description="allow NAME:TAG@sha256:..., whose tag nobody checks")
    model: Model
    gpu: Gpu
    args: Args
    env: dict[str, str | int] = Field(default_factory=dict, max_length=256, description="environment, text values")
    container: Container = Field(default_factory=Container)


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of DEPLOY."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Deploy.model_json_schema()}
