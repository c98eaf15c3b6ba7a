"""FlyDSL MegaMoE v1 in plain torch, on any device: same constructor, same forward, same bits.

It reads the *shuffled* weights that the kernels read (layout.py), so a wrong layout is wrong here too. It computes what
the gfx950 kernels compute, step by step: activation quantisation, scaled fp8 x fp4 products, SwiGLU, a2 quantisation,
gemm2 with the routing weight and a rounding to bf16 in its epilogue, and a combine that adds the K results in slot
order. With `accumulate=torch.float64` every vector of tests/golden is met bit for bit (the kernels, executed);
`torch.float32` is the faster form for the CPU engine, within rounding of the same result.

One process holds all W ranks of an expert-parallel group:

    group = ReferenceGroup(ep_size=8)
    ranks = [MegaMoE(rank=r, world_size=8, ..., group=group) for r in range(8)]
    outs = group.forward([(x_0, ids_0, weights_0), ...])   # one entry per rank
    one = ranks[3].forward(x_3, weights_3, ids_3)          # one rank's tokens through the experts of all ranks

With world_size=1 no group is needed. Decode steps are fast only after `prepare()`, which unshuffles and dequantises
the bound layer once; without it each forward does that expert by expert, in little memory.

Source of the arithmetic: FlyDSL 8acf56d kernels/mega_moe/{quant,gemm1,epilogue}.py, gemm2 and combine, as executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from megamoe_atom import layout, quant
from megamoe_atom.problem import Exit, Problem

_NEG_LOG2_E = -1.4426950408889634
_MATRIX_K = 128  # products that one v_mfma_scale_f32_16x16x128_f8f6f4 sums before it rounds to float32
EPOCH_LIMIT = 2**31
RankInput = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _refuse(code: str, what: str, why: str, fix: str) -> Problem:
    return Problem(code, exit_code=Exit.PRECONDITION, what=what, why=why, fix=fix)


def _rows_times(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x [n, H] @ w.T for w [R, H]. For a few rows the weights stand on the left: MKL then reads them once, in order.

    Measured on one core, w [1536, 768] float32, ms: 0.23 against 0.63 (n = 2), 0.45 against 0.53 (n = 6); then slower.
    The result is dense: a transposed one would make the next product more than twice as slow (0.55 ms against 0.21).
    """
    return (w @ x.T).T.contiguous() if x.shape[0] <= 6 else x @ w.T


def _version(t: torch.Tensor) -> int:
    # Inference tensors keep no version counter; they cannot be written in place outside inference mode anyway.
    return -1 if t.is_inference() else t._version


@dataclass(frozen=True, slots=True)
class PreparedLayer:
    """A layer's weights as plain numbers: w13 [epr, 2I, H] gate rows first, w2 [epr, H, I], in the accumulation dtype.

    `key` names the shuffled bytes they were made from; the tensors are kept so that no other may take their address.
    """

    w13: torch.Tensor
    w2: torch.Tensor
    key: tuple[Any, ...]
    sources: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class ReferenceGroup:
    """The W ranks of an expert-parallel group in one process."""

    def __init__(self, ep_size: int) -> None:
        if not 1 <= ep_size <= 8:
            raise _refuse(
                "ep_size",
                f"ep_size={ep_size}",
                "MegaMoE v1 runs 1 to 8 ranks of one node",
                "use 8 ranks per replica, and more replicas for more nodes",
            )
        self.ep_size = ep_size
        self.members: list[MegaMoE | None] = [None] * ep_size

    def join(self, kernel: MegaMoE) -> None:
        """Registers a rank's kernel; a later one of the same rank replaces it."""
        if kernel.world_size != self.ep_size:
            raise _refuse(
                "ep_size",
                f"rank {kernel.rank} has world_size={kernel.world_size} in a group of {self.ep_size}",
                "experts are divided by the group's size",
                "give all ranks the group's ep_size",
            )
        self.members[kernel.rank] = kernel

    def owners(self) -> list[MegaMoE]:
        """All ranks' kernels in order.

        Raises:
            Problem: "ep_rank_missing", a rank has not joined (on GPUs its peers would wait for it for ever).
        """
        missing = [r for r, m in enumerate(self.members) if m is None]
        if missing:
            raise _refuse(
                "ep_rank_missing",
                f"ranks {missing} of {self.ep_size} have not joined the group",
                "tokens routed to their experts have nowhere to go",
                "construct MegaMoE for every rank first",
            )
        return [m for m in self.members if m is not None]

    def forward(self, inputs: Sequence[RankInput], *, slice_output: bool = True) -> list[torch.Tensor]:
        """One forward of all ranks.

        Args:
            inputs: per rank (x bf16 [n_r, H], topk_ids integer [n_r, K], weights float32 [n_r, K]). The order differs:
                a kernel's own forward takes the weights before the ids, as FlyDSL's does.
        Returns:
            per rank bf16 [n_r, H], views of each rank's output buffer as on the GPU: the next forward overwrites them.
        """
        owners = self.owners()
        if len(inputs) != self.ep_size:
            raise _refuse(
                "ep_rank_missing",
                f"{len(inputs)} inputs for {self.ep_size} ranks",
                "every rank takes part in every forward",
                "give each rank an input of at least one token",
            )
        quantised = []
        for kernel, (x, ids, weights) in zip(owners, inputs, strict=True):
            kernel._check(x, weights, ids)
            payload, scales = kernel.quantize(x)
            quantised.append((kernel, payload, scales, weights, ids))
        return _group_forward(owners, quantised, slice_output=slice_output)


def _group_forward(
    owners: list[MegaMoE],
    ranks: Sequence[tuple[MegaMoE, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]],
    *,
    slice_output: bool,
) -> list[torch.Tensor]:
    """Dispatch, both gemms on each owner, combine: from quantised tokens per rank to outputs per rank."""
    first = ranks[0][0]
    dtype = first.accumulate
    x = torch.cat([quant.dequantize(payload, scales, dtype) for _, payload, scales, _, _ in ranks])
    weights = torch.cat([w for _, _, _, w, _ in ranks])
    ids = torch.cat([i.long() for _, _, _, _, i in ranks])
    picked = torch.empty((*ids.shape, first.model_dim), dtype=torch.float32, device=x.device)
    for owner in owners:
        owner._experts(x, ids, weights, picked)
    # f32 sum in slot order, as the combine kernel adds them: torch's own reduction may pair them differently.
    total = picked[:, 0].clone()
    for slot in range(1, ids.shape[1]):
        total += picked[:, slot]
    outs, at = [], 0
    for kernel, payload, *_ in ranks:
        tokens = payload.shape[0]
        kernel._count_launch()
        out = kernel._output(tokens)
        out[:tokens] = total[at : at + tokens].to(torch.bfloat16)
        outs.append(out[:tokens] if slice_output else out)
        at += tokens
    return outs


class MegaMoE:
    """FlyDSL MegaMoE's constructor and forward (keyword names and order of 8acf56d), and four more keywords.

    Args as upstream: rank, world_size, model_dim (H), inter_dim (I), experts (E, global), topk (K), quant ("a8w4" or
        "a4w4"), w1, w1_scale, w2, w2_scale (this rank's E/W experts, shuffled, uint8, any shape of the right size; 1-D
        as the adapter passes them), max_tok_per_rank. The tile arguments choose no numbers and are accepted.
    Args of ours: group (all ranks in this process; not needed for world_size 1), swiglu_limit (0 or None: none, as v1;
        L > 0: g = min(g, L), u = clamp(u, -L, L) before SiLU, as V2 and the edited kernel), accumulate (torch.float64:
        bit-equal to the kernels as executed; torch.float32: faster), prepare (dequantise the given weights at once).
    Layers share one instance: bind() another layer's weights before its forward (upstream: set _s1_w1, _s1_w1_scale,
        w2, w2_scale; that works here too).
    Raises:
        Problem: codes quant, mtpr, expert_split, ep_size, gate_mode, weight_size, weight_dtype, scale_block.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        model_dim: int,
        inter_dim: int,
        experts: int,
        topk: int,
        quant: str,
        w1: torch.Tensor,
        w1_scale: torch.Tensor,
        w2: torch.Tensor,
        w2_scale: torch.Tensor,
        max_tok_per_rank: int,
        tune_tokens: int | None = None,
        mega_scheme: str = "fixedslot",
        tile_m: int = -1,
        tile_n: int = -1,
        tile_k: int = 256,
        gemm2_tile_m: int = -1,
        gemm2_tile_n: int = -1,
        gemm2_tile_k: int = -1,
        gemm2_persist_m: int = -1,
        waves_per_eu: int = 4,
        use_async_copy: bool = True,
        slice_k: int = 1,
        xcd_swizzle: int = 0,
        gemm2_tile_table: dict[Any, Any] | None = None,
        enable_fused_stage1: bool = True,
        enable_fused_stage2: bool = True,
        gate_mode: Any = None,
        group: ReferenceGroup | None = None,
        swiglu_limit: float | None = None,
        accumulate: torch.dtype = torch.float32,
        prepare: bool = False,
    ) -> None:
        if quant not in ("a8w4", "a4w4"):
            raise _refuse(
                "quant", f"quant={quant!r}", "MegaMoE v1 has kernels for a8w4 and a4w4 only", "DeepSeek-V4 runs as a8w4"
            )
        if max_tok_per_rank < 1 or max_tok_per_rank & (max_tok_per_rank - 1):
            raise _refuse(
                "mtpr",
                f"max_tok_per_rank={max_tok_per_rank}",
                "the kernels decode a token's rank and row by shift and mask, so it must be a positive power of two",
                "use 2048, 4096 or 8192",
            )
        if world_size < 1 or experts % world_size:
            raise _refuse(
                "expert_split",
                f"experts={experts}, world_size={world_size}",
                "every rank owns the same number of experts",
                "use an EP size that divides the experts",
            )
        if not 0 <= rank < world_size:
            raise _refuse(
                "ep_size", f"rank={rank}, world_size={world_size}", "ranks are numbered from 0", "pass the EP rank"
            )
        if model_dim % 256 or inter_dim % 256:
            raise _refuse(
                "scale_block",
                f"model_dim={model_dim}, inter_dim={inter_dim}",
                "the kernels contract in tiles of 256 and drop a remainder silently",
                "only models whose hidden and intermediate sizes are multiples of 256 can run",
            )
        mode = str(getattr(gate_mode, "value", gate_mode) or ("interleave" if quant == "a8w4" else "separated")).lower()
        if mode not in ("interleave", "separated"):
            raise _refuse(
                "gate_mode",
                f"gate_mode={gate_mode!r}",
                "the fused kernel knows interleaved and separated "
                "gate and up rows; it silently treats other names as separated",
                "leave it out for the default",
            )
        if accumulate not in (torch.float32, torch.float64):
            raise _refuse(
                "accumulate",
                f"accumulate={accumulate}",
                "narrower sums are not what the kernels compute",
                "torch.float64 (bit-exact) or torch.float32 (fast)",
            )
        self.rank, self.world_size = int(rank), int(world_size)
        self.model_dim, self.inter_dim, self.experts, self.topk = (
            int(model_dim),
            int(inter_dim),
            int(experts),
            int(topk),
        )
        self.epr = self.experts // self.world_size
        self.quant = quant
        self.mtpr = int(max_tok_per_rank)
        self.gate_up = mode == "interleave"
        self.swiglu_limit = float(swiglu_limit or 0.0)
        if self.swiglu_limit < 0:
            raise _refuse(
                "swiglu_limit",
                f"swiglu_limit={swiglu_limit}",
                "a negative limit has no meaning and the edited kernel would silently take it as none",
                "pass the model's limit (V4: 10.0) or 0",
            )
        self.accumulate = accumulate
        self.launches = 0
        self._form = "fp8" if quant == "a8w4" else "fp4"
        self._prepared: dict[tuple[Any, ...], PreparedLayer] = {}
        self._buffer: torch.Tensor | None = None
        self.bind(w1, w1_scale, w2, w2_scale)
        self.group = group if group is not None else (ReferenceGroup(1) if self.world_size == 1 else None)
        if self.group is None:
            raise _refuse(
                "ep_rank_missing",
                f"world_size={world_size} without a group",
                "the reference computes all ranks in one process",
                "pass group=ReferenceGroup(world_size)",
            )
        self.group.join(self)
        if prepare:
            self.prepare()

    # ---- weights -------------------------------------------------------------------------------------------------

    def bind(self, w1: torch.Tensor, w1_scale: torch.Tensor, w2: torch.Tensor, w2_scale: torch.Tensor) -> None:
        """Makes these shuffled weights the ones that the next forward reads (pointers only, nothing is copied)."""
        h, i, e = self.model_dim, self.inter_dim, self.epr
        pads = layout.w2_scale_shape((e, 2 * i, h // 32))
        for name, t, size in (
            ("w1", w1, e * i * h),
            ("w1_scale", w1_scale, e * 2 * i * (h // 32) if self.gate_up else pads[0] * pads[1]),
            ("w2", w2, e * h * i // 2),
            ("w2_scale", w2_scale, _area(layout.w2_scale_shape((e, h, i // 32)))),
        ):
            if t.element_size() != 1:
                raise _refuse(
                    "weight_dtype",
                    f"{name} has dtype {t.dtype}",
                    "the kernels read bytes",
                    "pass the converted uint8 tensors of megamoe_atom.layout",
                )
            if t.numel() != size:
                raise _refuse(
                    "weight_size",
                    f"{name} holds {t.numel()} bytes, expected {size} for {e} experts, hidden {h}, inter {i}",
                    "the kernels take the size on trust and would read other experts or zeros",
                    "pass this rank's experts only, converted by megamoe_atom.layout",
                )
            if not t.is_contiguous():
                raise _refuse(
                    "weight_strides",
                    f"{name} has strides {t.stride()}",
                    "the kernels address dense bytes",
                    "pass a contiguous tensor",
                )
        self._s1_w1, self._s1_w1_scale, self.w2, self.w2_scale = w1, w1_scale, w2, w2_scale

    def _sources(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        return self._s1_w1, self._s1_w1_scale, self.w2, self.w2_scale

    def _key(self) -> tuple[Any, ...]:
        return tuple((t.data_ptr(), _version(t)) for t in self._sources())

    def prepare(self) -> PreparedLayer:
        """Unshuffles and dequantises the bound layer once; later forwards with the same bound tensors use the result.

        Memory: epr * 3 * H * I numbers of the accumulation dtype per prepared layer. Writing to a bound tensor in place
        (its torch version counter) makes it stale, and it is made again; writes through `.data` are not seen.
        """
        key = self._key()
        if key not in self._prepared:
            addresses = [k[0] for k in key]
            self._prepared = {k: v for k, v in self._prepared.items() if [a[0] for a in k] != addresses}
            scales = self._raw_scales()
            experts = [self._expert(e, scales) for e in range(self.epr)]
            self._prepared[key] = PreparedLayer(
                torch.stack([w13 for w13, _ in experts]), torch.stack([w2 for _, w2 in experts]), key, self._sources()
            )
        return self._prepared[key]

    def forget(self) -> None:
        """Drops all prepared layers."""
        self._prepared.clear()

    def _expert(
        self, local: int, scales: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers of one local expert: w13 [2I, H] and w2 [H, I]; only this expert's weight bytes are unshuffled."""
        h, i, e = self.model_dim, self.inter_dim, self.epr
        w1, w2 = self._s1_w1.view(torch.uint8).view(e, 2 * i, h // 2), self.w2.view(torch.uint8).view(e, h, i // 2)
        one = slice(local, local + 1)
        s13, s2 = scales if scales is not None else self._raw_scales()
        return (
            quant.dequantize_mxfp4(layout.unshuffle_w13(w1[one], gate_up=self.gate_up)[0], s13[local], self.accumulate),
            quant.dequantize_mxfp4(layout.unshuffle_w2(w2[one])[0], s2[local], self.accumulate),
        )

    def _raw_scales(self) -> tuple[torch.Tensor, torch.Tensor]:
        h, i, e = self.model_dim, self.inter_dim, self.epr
        s1, s2 = self._s1_w1_scale.view(torch.uint8), self.w2_scale.view(torch.uint8)
        s13 = (
            layout.unshuffle_w13_scale(s1.view(e, 2 * i, h // 32))
            if self.gate_up
            else layout.unshuffle_w13_scale(s1, gate_up=False, shape=(e, 2 * i, h // 32))
        )
        return s13, layout.unshuffle_w2_scale(s2, (e, h, i // 32))

    # ---- arithmetic ----------------------------------------------------------------------------------------------

    def quantize(self, x_bf16: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """bf16 [n, H] -> (payload, e8m0 uint8 [n, H/32]); payload fp8 [n, H] or packed fp4 [n, H/2]."""
        return quant.quantize_activation(x_bf16, self._form)

    def _activation(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[..., 2I] accumulated in the accumulation dtype -> a2 values [..., I] after its quantisation, same dtype."""
        gate, up = gate_up.to(torch.float32).chunk(2, dim=-1)
        if self.swiglu_limit > 0:
            gate, up = gate.clamp(max=self.swiglu_limit), up.clamp(-self.swiglu_limit, self.swiglu_limit)
        power = gate * _NEG_LOG2_E
        # float64 in the exact form: the vector exp2 of some CPUs is off by one bit in float32.
        power = torch.exp2(power.double()).float() if self.accumulate == torch.float64 else torch.exp2(power)
        a = (gate * (1.0 / (1.0 + power))) * up
        return quant.dequantize(*quant.quantize_a2(a, self._form), self.accumulate)

    def _times(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """[N, K] times [M, K] transposed; in the exact form summed as the matrix unit sums it.

        128 products exactly, one rounding to float32, and so on. One float64 sum gives the same bits in all layers but
        the widest: over V4-Pro's 7168 and 3072 products, one of 28,672 values fell on the other side of a rounding.
        """
        if self.accumulate == torch.float32:
            return a @ b.T
        total = torch.zeros((a.shape[0], b.shape[0]), dtype=torch.float64, device=a.device)
        for k in range(0, a.shape[1], _MATRIX_K):
            total = (total + a[:, k : k + _MATRIX_K] @ b[:, k : k + _MATRIX_K].T).float().double()
        return total

    def _experts(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, picked: torch.Tensor) -> None:
        """Both gemms of this rank's experts for the tokens of all ranks.

        Args:
            x: [N, H] dequantised, ids [N, K] global, weights float32 [N, K].
            picked: float32 [N, K, H], receives the bf16-rounded result of each (token, slot) that this rank owns.
        """
        ready = self._prepared.get(self._key())
        if ready is not None and self.experts <= 2 * self.topk and self.accumulate == torch.float32:
            # Nearly every expert is used: a few large products beat a loop of small ones by far.
            hidden = _rows_times(x, ready.w13.flatten(0, 1)).view(x.shape[0], self.epr, -1)
            # Weights on the left as in _rows_times; one core, w [3, 768, 256]: 0.13 ms against 0.24 (n = 2).
            y = torch.bmm(ready.w2, self._activation(hidden).permute(1, 2, 0)).permute(2, 0, 1)
            local = ids - self.rank * self.epr
            chosen = y[torch.arange(len(y), device=y.device).unsqueeze(1), local.clamp(0, self.epr - 1)]
            values = (chosen.float() * weights.unsqueeze(-1)).to(torch.bfloat16).float()
            mine = ((local >= 0) & (local < self.epr)).unsqueeze(-1)
            picked.copy_(torch.where(mine, values, picked))
            return
        base = self.rank * self.epr
        local = ids - base
        used = torch.unique(local[(local >= 0) & (local < self.epr)]).tolist()
        scales = self._raw_scales() if ready is None and used else None
        for expert in used:
            token, slot = (local == expert).nonzero(as_tuple=True)
            w13, w2 = (ready.w13[expert], ready.w2[expert]) if ready is not None else self._expert(expert, scales)
            y = self._times(self._activation(self._times(x[token], w13)), w2)
            picked[token, slot] = (y.float() * weights[token, slot].unsqueeze(-1)).to(torch.bfloat16).float()

    # ---- calls ---------------------------------------------------------------------------------------------------

    def _check(self, x: torch.Tensor, wts: torch.Tensor, topk_ids: torch.Tensor) -> None:
        if x.ndim != 2 or x.shape[-1] not in (self.model_dim, self.model_dim // 2):
            raise _refuse(
                "x_shape",
                f"x has shape {tuple(x.shape)}, hidden is {self.model_dim}",
                "the kernels take rows of the model's hidden size",
                "pass [tokens, hidden]",
            )
        tokens = x.shape[0]
        if tokens < 1:
            raise _refuse(
                "no_tokens",
                "a forward of 0 tokens",
                "the quantisation kernel would launch an empty grid and peers would wait for this rank",
                "use one dummy token on an idle rank",
            )
        if tokens > self.mtpr:
            raise _refuse(
                "mtpr_exceeded",
                f"run_tokens={tokens} > max_tok_per_rank={self.mtpr}",
                "the symmetric buffers hold max_tok_per_rank rows per rank; peers would wait for ever",
                "lower --max-num-batched-tokens to the mtpr, on every rank",
            )
        if wts.dtype != torch.float32:
            raise _refuse(
                "weights_dtype",
                f"routing weights have dtype {wts.dtype}",
                "the kernels read 4-byte words; bf16 pairs would be read as one float",
                "pass float32 weights",
            )
        if tuple(wts.shape) != (tokens, self.topk) or tuple(topk_ids.shape) != (tokens, self.topk):
            raise _refuse(
                "routing_shape",
                f"weights {tuple(wts.shape)} and ids {tuple(topk_ids.shape)} for {tokens} tokens and topk={self.topk}",
                "each token carries exactly K experts",
                "pass [tokens, topk] of both",
            )
        low, high = torch.aminmax(topk_ids)
        if int(low) < 0 or int(high) >= self.experts:
            raise _refuse(
                "expert_id",
                f"expert ids reach from {int(low)} to {int(high)}, the model has {self.experts}",
                "the kernels skip such a slot at dispatch and then add a stale result for it",
                "mask no experts and pad no ids; EPLB and redundant experts are not supported",
            )

    def _count_launch(self) -> None:
        if self.launches >= EPOCH_LIMIT - 1:
            raise _refuse(
                "launch_epoch",
                f"launch number {self.launches + 1}",
                "the kernels' launch epoch is a signed 32-bit number, and stage-1 waits for ever at 2^31",
                "restart the service in a rolling manner",
            )
        self.launches += 1

    def _output(self, tokens: int) -> torch.Tensor:
        if self._buffer is None:
            self._buffer = torch.zeros((self.mtpr, self.model_dim), dtype=torch.bfloat16, device=self.w2.device)
        return self._buffer

    def forward(
        self,
        x_bf16: torch.Tensor,
        wts: torch.Tensor,
        topk_ids: torch.Tensor,
        *,
        stream: Any = None,
        slice_output: bool = True,
    ) -> torch.Tensor:
        """One layer for this rank's tokens, through the experts that all ranks have bound.

        Args:
            x_bf16: [n, H] bf16, 1 <= n <= mtpr; wts: float32 [n, K]; topk_ids: integer [n, K], each in [0, E).
            stream: accepted for the signature's sake.
            slice_output: False returns all mtpr rows of the buffer.
        Returns:
            bf16 [n, H], a view of this rank's one output buffer, as upstream: the next forward overwrites it.
        Raises:
            Problem: x_shape, x_dtype, no_tokens, mtpr_exceeded, weights_dtype, routing_shape, expert_id, launch_epoch.
        """
        if x_bf16.dtype != torch.bfloat16:
            raise _refuse(
                "x_dtype", f"x has dtype {x_bf16.dtype}", "the quantisation kernel reads bf16", "pass bf16 activations"
            )
        self._check(x_bf16, wts, topk_ids)
        payload, scales = self.quantize(x_bf16)
        return self._run(payload, scales, wts, topk_ids, slice_output=slice_output)

    forward_bf16 = forward

    def forward_prequant(
        self,
        x_q: torch.Tensor,
        scales: torch.Tensor,
        wts: torch.Tensor,
        topk_ids: torch.Tensor,
        *,
        stream: Any = None,
        slice_output: bool = True,
    ) -> torch.Tensor:
        """As forward, from the payload and the scales that quantize() returns."""
        self._check(x_q, wts, topk_ids)
        return self._run(x_q, scales, wts, topk_ids, slice_output=slice_output)

    def _run(
        self,
        payload: torch.Tensor,
        scales: torch.Tensor,
        wts: torch.Tensor,
        topk_ids: torch.Tensor,
        *,
        slice_output: bool,
    ) -> torch.Tensor:
        assert self.group is not None
        return _group_forward(self.group.owners(), [(self, payload, scales, wts, topk_ids)], slice_output=slice_output)[
            0
        ]

    __call__ = forward


def _area(shape: tuple[int, int]) -> int:
    return shape[0] * shape[1]
