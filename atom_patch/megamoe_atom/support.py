"""One pure function: a launch's configuration to every reason why MegaMoE may not run there.

Each row names a stable code. Requested and unsupported is an error at start-up with the whole list, never a silent
fall-back. Source of the rows: FlyDSL 8acf56d (what the kernels assume without checking) and the defects found in
ROCm/ATOM#1666, which checked none of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from megamoe_atom import kernel_edits, limits
from megamoe_atom.problem import Reason

FLYDSL_VERSIONS = ("0.2.2", "0.2.3", "0.2.4")
ARCH = "gfx950"
FULL_CU_COUNT = 256
XCDS = 8
MAX_HIDDEN = 8192
"""The scale copy of the dispatch uses 64 lanes of one dword: hidden / 128 <= 64."""


@dataclass(frozen=True, slots=True)
class SupportInputs:
    """What is known before the first layer is built. The defaults are DeepSeek-V4-Pro on 8 MI355X, which may run.

    hidden, inter: without padding; padded_*: as ATOM would pad them. kernel_has_swiglu_limit: the edited kernels.
    fixed_slot_race_closed: whether the loaded kernels carry the edits for E9 and L2 (publish_order, payload_wait).
    xcd_guard_closed: whether they carry the one for E2 (xcd_guard). local_experts: what ATOM built on this rank.
    heap_taken_bytes: by the kernels of layers of other sizes. gpu_index: of the GPU that holds the weights, if any.
    """

    hidden: int = 7168
    inter: int = 3072
    padded_hidden: int = 7168
    padded_inter: int = 3072
    experts: int = 384
    local_experts: int | None = None
    topk: int = 6
    ep_enabled: bool = True
    ep_size: int = 8
    ep_rank: int = 0
    gpu_index: int | None = None
    tp_size: int = 1
    dp_size: int = 8
    dp_attention: bool = True
    pcp_size: int = 1
    nodes: int = 1
    visible_gpus: int = 8
    mori_available: bool = True
    shmem_mode: str = "static"
    heap_bytes: int = 6 * limits.GIB
    heap_taken_bytes: int = 0
    atom_mori_ops: int = 0
    tbo: bool = False
    eplb: bool = False
    redundant_experts: int = 0
    fused_shared_experts: int = 0
    bias: bool = False
    activation: str = "silu"
    router_weight_on_input: bool = False
    static_input_scales: bool = False
    weight_format: str = "mxfp4"
    quant: str = "a8w4"
    mtpr: int = 8192
    max_num_batched_tokens: int = 8192
    swiglu_limit: float = 10.0
    kernel_has_swiglu_limit: bool = True
    accept_no_swiglu_limit: bool = False
    triton_moe: bool = False
    triton_moe_decode: bool = False
    plugin_mode: str | None = None
    arch: str = ARCH
    flydsl_version: str = "0.2.4"
    cu_count: int = FULL_CU_COUNT
    fixed_slot_race_closed: bool = False
    xcd_guard_closed: bool = False
    compile_only: bool = False
    kernels_path_given: bool = True


ANY_LAYER = SupportInputs(
    hidden=512,
    padded_hidden=512,
    inter=256,
    padded_inter=256,
    experts=8,
    topk=1,
    heap_bytes=2**62,
    swiglu_limit=0.0,
    fixed_slot_race_closed=True,
)
"""A layer that runs wherever any does: what is wrong with a launch for this one is wrong with the launch itself."""

LAYER_ROWS = frozenset(
    {
        "ep_off",
        "gpu_index",
        "mori",
        "weight_format",
        "expert_split",
        "expert_count",
        "redundant_experts",
        "fused_shared_experts",
        "bias",
        "activation",
        "router_weight_on_input",
        "static_scales",
        "padding",
    }
)
"""The rows that a layer decides by how ATOM constructed it."""


def of_layer(launch: SupportInputs, layer: Any, method: Any) -> SupportInputs:
    """`launch` with what an ATOM layer (FusedMoE) and its method say of themselves."""
    parallel = layer.moe_parallel_config
    hidden, inter = int(method.hidden_size), int(method.intermediate_size)
    device = layer.w13_weight.device
    return replace(
        launch,
        hidden=hidden - int(method.hidden_pad),
        inter=inter - int(method.intermediate_pad),
        padded_hidden=hidden,
        padded_inter=inter,
        experts=int(layer.global_num_experts),
        local_experts=int(layer.local_num_experts),
        topk=int(layer.top_k),
        ep_enabled=bool(parallel.use_ep),
        ep_size=int(parallel.ep_size),
        ep_rank=int(parallel.ep_rank),
        gpu_index=device.index if device.type == "cuda" else None,
        # ATOM makes this method for every fp4 layer, whatever its scales cover.
        weight_format="mxfp4" if "per_1x32" in str(method.quant_type) else f"fp4 with scales {method.quant_type}",
        mori_available=bool(parallel.use_all2all_kernels),
        redundant_experts=int(layer.num_redundant_experts),
        fused_shared_experts=int(layer.num_fused_shared_experts),
        bias=bool(layer.has_bias),
        activation="silu" if "silu" in str(layer.activation).lower() else str(layer.activation),
        router_weight_on_input=bool(layer.apply_router_weight_on_input),
        static_input_scales=bool(method.static_input_scales),
        swiglu_limit=float(getattr(layer, "swiglu_limit", 0.0) or 0.0),
    )


def of_edits(launch: SupportInputs, edits: frozenset[str]) -> SupportInputs:
    """`launch` on kernels that carry these edits."""
    return replace(
        launch,
        kernel_has_swiglu_limit=kernel_edits.SWIGLU_LIMIT in edits,
        fixed_slot_race_closed={kernel_edits.PUBLISH_ORDER, kernel_edits.PAYLOAD_WAIT} <= edits,
        xcd_guard_closed=kernel_edits.XCD_GUARD in edits,
    )


def swiglu_reason(limit: float) -> Reason:
    """The acknowledgement that a model with a SwiGLU limit asks for on kernels that have none."""
    return Reason(
        "swiglu_limit",
        f"the model clamps SwiGLU at {limit:g} and the loaded kernels do not clamp",
        "ROCm/ATOM#1666 measured gsm8k at 0.9424 with the fused kernels and 0.9522 with the standard path",
        "use the edited kernels of our image, or acknowledge the loss with MEGAMOE_ACCEPT_NO_SWIGLU_LIMIT=1",
    )


def reasons_against(config: SupportInputs) -> list[Reason]:
    """Every reason why this launch may not use MegaMoE, in a fixed order; empty when it may.

    Never stops at the first one: a person fixes a launch once, not ten times.
    """
    c = config
    found: list[Reason] = []

    def refuse(when: bool, code: str, what: str, why: str, fix: str) -> None:
        if when:
            found.append(Reason(code, what, why, fix))

    # ---- who holds which tokens and experts
    refuse(
        not c.ep_enabled,
        "ep_off",
        "expert parallelism is off",
        "MegaMoE sends tokens to the ranks that own experts",
        "pass --enable-expert-parallel",
    )
    refuse(
        c.tp_size > 1,
        "tp",
        f"tensor parallel size is {c.tp_size}",
        f"TP ranks hold the same tokens, so the summed routed output would be {c.tp_size} times too large",
        "pass --enable-dp-attention, which turns the TP ranks into DP ranks",
    )
    refuse(
        c.dp_size <= 1,
        "dp",
        f"data parallel size is {c.dp_size}",
        "each rank must bring its own tokens",
        "pass --data-parallel-size 8",
    )
    refuse(
        not c.dp_attention,
        "dp_attention",
        "DP attention is off",
        "ATOM then gathers all ranks' tokens before the experts, and every rank would send them all",
        "pass --enable-dp-attention",
    )
    refuse(
        c.pcp_size > 1,
        "pcp",
        f"prefill context parallel size is {c.pcp_size}",
        "tokens would be replicated over it",
        "drop -pcp",
    )
    refuse(
        not 1 <= c.ep_size <= 8 or c.nodes != 1,
        "ep_size",
        f"{c.ep_size} EP ranks on {c.nodes} node(s)",
        "the kernels address peers over xGMI, at most 8 ranks of one node",
        "use one replica of 8 ranks per node",
    )
    refuse(
        c.visible_gpus < c.ep_size,
        "visible_gpus",
        f"{c.visible_gpus} of {c.ep_size} GPUs are visible in the process",
        "the kernels open the device of each peer by its rank",
        "do not narrow HIP_VISIBLE_DEVICES per process",
    )
    refuse(
        c.gpu_index is not None and c.gpu_index != c.ep_rank,
        "gpu_index",
        f"EP rank {c.ep_rank} holds its weights on GPU {c.gpu_index}",
        "the kernels take the rank for the number of its GPU, so buffers and weights would lie on two GPUs",
        "start the ranks in the order of the GPUs, with all GPUs visible to each, and one server per node",
    )
    # ---- shared memory
    refuse(
        not c.mori_available,
        "mori",
        "mori cannot be imported, or ATOM gathers the tokens of all ranks instead of using it",
        "the symmetric heap is mori's; of gathered tokens each would be computed once per rank, and summed",
        "install mori, as our image does, and pass --enable-dp-attention and --enable-expert-parallel",
    )
    refuse(
        c.shmem_mode != "static",
        "heap_mode",
        f"MORI_SHMEM_MODE is {c.shmem_mode}",
        "mori translates a plain pointer to a peer's in the static heap only; the first one is null and the GPU faults",
        "unset MORI_SHMEM_MODE",
    )
    # ---- what ATOM may do to the experts
    refuse(
        c.tbo,
        "tbo",
        "two-batch overlap is on",
        "both halves share one output buffer, and two spinning kernels starve each other",
        "drop --enable-tbo",
    )
    refuse(
        c.eplb,
        "eplb",
        "EPLB is on",
        "it moves raw expert weights, which MegaMoE converts and empties, and remaps ids",
        "drop --eplb-enable",
    )
    refuse(
        c.redundant_experts > 0,
        "redundant_experts",
        f"{c.redundant_experts} redundant experts",
        "the kernels know only experts 0 to E-1, in order",
        "set redundant experts to 0",
    )
    refuse(
        c.fused_shared_experts > 0,
        "fused_shared_experts",
        f"{c.fused_shared_experts} shared experts are fused into the routed ones",
        "their ids lie beyond the experts that are divided over the ranks",
        "turn shared fusion off",
    )
    refuse(
        c.plugin_mode is not None,
        "plugin",
        f"ATOM runs as a plugin of {c.plugin_mode}",
        "its token layout and warm-up are the host's, and were never checked with MegaMoE",
        "run ATOM's own server",
    )
    refuse(
        c.triton_moe,
        "triton_moe",
        "ATOM_USE_TRITON_MOE is set",
        "ATOM would return before the fused path and silently not use it",
        "unset ATOM_USE_TRITON_MOE",
    )
    refuse(
        c.triton_moe_decode,
        "triton_moe_decode",
        "ATOM_USE_TRITON_MOE_DECODE is set",
        "decode would look for weights that MegaMoE has converted",
        "unset ATOM_USE_TRITON_MOE_DECODE",
    )
    # ---- what the kernel computes
    refuse(c.bias, "bias", "the experts have a bias", "the kernels add none", "this model cannot use MegaMoE")
    refuse(
        c.activation.lower() != "silu",
        "activation",
        f"the activation is {c.activation}",
        "the kernels compute SiLU only",
        "this model cannot use MegaMoE",
    )
    refuse(
        c.router_weight_on_input,
        "router_weight_on_input",
        "the router weight is applied to the input",
        "the kernels apply it to gemm2's output",
        "this model cannot use MegaMoE",
    )
    refuse(
        c.weight_format != "mxfp4",
        "weight_format",
        f"the experts are {c.weight_format}",
        "the kernels read e2m1 pairs with one e8m0 scale per 32 values",
        "use the fp4-expert checkpoint (not -Base or -FP8)",
    )
    refuse(
        c.static_input_scales,
        "static_scales",
        "the experts have static activation scales",
        "the kernels quantise activations by themselves",
        "this model cannot use MegaMoE",
    )
    refuse(
        c.quant != "a8w4",
        "quant",
        f"quant is {c.quant}",
        "only a8w4 is proven here",
        "set ATOM_MOE_GU_ITLV=1 and AITER_BF16_FP8_MOE_BOUND=0, which make ATOM's own path a8w4 too",
    )
    refuse(
        not c.swiglu_limit >= 0,
        "swiglu_sign",
        f"the model's swiglu_limit is {c.swiglu_limit:g}",
        "the kernels clamp at a positive limit only, so it would silently mean none",
        "correct swiglu_limit in config.json",
    )
    if c.swiglu_limit > 0 and not c.kernel_has_swiglu_limit and not c.accept_no_swiglu_limit:
        found.append(swiglu_reason(c.swiglu_limit))
    # ---- shapes that the kernels get silently wrong
    refuse(
        (c.padded_hidden, c.padded_inter) != (c.hidden, c.inter),
        "padding",
        f"ATOM pads {c.hidden} x {c.inter} to {c.padded_hidden} x {c.padded_inter}",
        "the kernels would read the pads as weights",
        "this model cannot use MegaMoE",
    )
    refuse(
        c.hidden % 512 != 0,
        "hidden_multiple",
        f"hidden={c.hidden} is not a multiple of 512",
        "the scale staging moves whole tiles, and a tail of the contraction would be dropped",
        "this model cannot use MegaMoE",
    )
    refuse(
        c.hidden > MAX_HIDDEN,
        "hidden_max",
        f"hidden={c.hidden} exceeds {MAX_HIDDEN}",
        "scales beyond 64 packed columns are never sent to the peer, silently",
        "this model cannot use MegaMoE",
    )
    refuse(
        c.inter % 256 != 0,
        "inter_multiple",
        f"inter={c.inter} is not a multiple of 256",
        "the last tile would read the next expert's rows",
        "this model cannot use MegaMoE",
    )
    refuse(
        not 1 <= c.topk <= 64,
        "topk",
        f"topk is {c.topk}, not 1 to 64",
        "the slot is kept in 8 bits and the dispatch allows 64",
        "this model cannot use MegaMoE",
    )
    splits = c.ep_size >= 1 and c.experts >= 1 and c.experts % c.ep_size == 0
    refuse(
        not splits,
        "expert_split",
        f"{c.experts} experts over {c.ep_size} ranks",
        "every rank owns the same number",
        "use an EP size that divides the experts",
    )
    refuse(
        splits and c.local_experts is not None and c.local_experts * c.ep_size != c.experts,
        "expert_count",
        f"ATOM built {c.local_experts} experts on this rank, {c.experts} experts over {c.ep_size} ranks are "
        f"{c.experts // max(c.ep_size, 1)}",
        "the kernels find an expert's rank as id // experts per rank",
        "turn EPLB, redundant and fused shared experts off",
    )
    # ---- tokens and memory
    power = limits.mtpr_reasons(c.mtpr)
    found += power
    refuse(
        c.max_num_batched_tokens > c.mtpr,
        "mtpr_too_small",
        f"--max-num-batched-tokens is {c.max_num_batched_tokens}, mtpr is {c.mtpr}",
        "warm-up alone sends a full batch; the rank that exceeds mtpr stops and its peers wait for ever",
        f"lower --max-num-batched-tokens to {c.mtpr}",
    )
    if (
        splits
        and not power
        and 1 <= c.ep_size <= 8
        and min(c.hidden, c.inter, c.topk) >= 1
        and c.quant in ("a8w4", "a4w4")
    ):
        g = limits.MoeGeometry(c.hidden, c.inter, c.experts, c.topk, c.ep_size, c.mtpr, c.quant)
        found += limits.bound_reasons(g)
        found += limits.heap_reasons(g, c.heap_bytes, atom_mori_ops=c.atom_mori_ops, taken_bytes=c.heap_taken_bytes)
        refuse(
            not limits.is_compact(g) and not c.fixed_slot_race_closed,
            "fixed_slot",
            f"mtpr={c.mtpr} selects the fixed-slot layout",
            "the pinned kernels publish its row counts after their ready flag; a rank that is "
            "quick reads old counts, silently",
            f"use mtpr={limits.smallest_compact(g)} or more, or the edited kernels",
        )
    # ---- the machine
    refuse(
        c.arch != ARCH,
        "arch",
        f"the GPU is {c.arch}",
        "the kernels' matrix instructions exist on gfx950 only; others abort the process",
        "run on MI350X or MI355X",
    )
    refuse(
        c.flydsl_version not in FLYDSL_VERSIONS,
        "flydsl_version",
        f"flydsl {c.flydsl_version} is installed" if c.flydsl_version else "flydsl is not installed",
        "older compilers reject the kernels, newer ones lack flydsl.expr.buffer_ops",
        "install flydsl 0.2.4",
    )
    refuse(
        c.cu_count < FULL_CU_COUNT,
        "cu_partition",
        f"the GPU shows {c.cu_count} of {FULL_CU_COUNT} compute units",
        "stage-1's blocks wait for each other and must all be resident at once; here they would hang or fail late",
        "set the partition mode to SPX and remove CU masks",
    )
    refuse(
        c.cu_count % XCDS != 0 and not c.xcd_guard_closed,
        "xcd_swizzle",
        f"{c.cu_count} compute units do not divide by {XCDS} XCDs",
        "the kernels' tile order then leaves tiles out, silently",
        "remove the CU mask, or use the edited kernels",
    )
    refuse(
        c.compile_only,
        "compile_only",
        "COMPILE_ONLY is set",
        "every kernel would be compiled and none would run",
        "unset COMPILE_ONLY",
    )
    refuse(
        not c.kernels_path_given,
        "flydsl_path",
        "ATOM_FLYDSL_KERNELS_PATH is not set",
        "the kernels come from that checkout and from nowhere else",
        "set it to the folder that holds kernels/; our image does",
    )
    return found
