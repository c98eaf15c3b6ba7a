"""A numerical proof at every start: the fused kernel against what the raw checkpoint tensors say.

While a layer's raw weights are still there, each rank computes in plain float32, from those raw tensors, what its own
experts contribute to a small seeded batch of all ranks (capture). After the conversion all ranks run the kernel on that
batch, the contributions are summed over the EP group, and each layer is compared (verify). The oracle shares no
code with the kernels or with layout.py; it shares the number formats of quant.py, which golden vectors pin.

A layer out of bounds stops the start. What kind of fault it is, is then told apart by cheap second comparisons: the
converted weights are unshuffled and judged alone, and the output is compared with what typical faults would give.

In one process with one rank, `local_ranks` has one entry and `group_sum` is an all-reduce over the EP group. In a
simulation one process holds all ranks and group_sum is the identity.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from megamoe_atom import layout, quant
from megamoe_atom.problem import Exit, Problem, Reason

if TYPE_CHECKING:
    from megamoe_atom.experts import Geometry, MegaExperts
    from megamoe_atom.layout import ConvertedLayer

Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Raw w13 [e, 2I, H/2], its scale [e, 2I, H/32], w2 [e, H, I/2], its scale [e, H, I/32]; uint8."""
RankInput = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""x bf16 [n, H], ids int32 [n, K], weights float32 [n, K]."""
Run = Callable[[str, Sequence[RankInput]], list[torch.Tensor]]
"""(layer, one input per local rank) -> one output bf16 [n, H] per local rank."""

LAYER_BOUND = {"a8w4": 0.10, "a4w4": 0.28}
"""relL2 of a layer, upstream's own bound against such an oracle (test_mega_moe.py: measured ~0.05, ~0.22)."""
ROW_BOUND = {"a8w4": 0.20, "a4w4": 0.50}
"""relL2 of one token: one wrong expert of K=6 gives about 0.4, which the layer's figure would hide."""
WEIGHTS_BOUND = 1e-3
"""Two float32 oracles on the same weights differ by rounding only."""
LOUD = 16.0
REPORTED_LAYERS = 5


@dataclass(frozen=True, slots=True)
class Batch:
    """The seeded tokens of all ranks: x bf16 [W, n, H], ids int32 [W, n, K], weights float32 [W, n, K].

    Every second token is LOUD times larger, so that gate and up reach beyond a swiglu_limit.
    """

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor

    def of(self, rank: int) -> RankInput:
        return self.x[rank], self.ids[rank], self.weights[rank]


@dataclass(slots=True)
class LayerReport:
    """Figures of one layer. relL2 without unit; `kind` is "" when it passed."""

    layer: str
    rel_quiet: float
    rel_loud: float
    rel_worst_row: float
    repeats: int
    repeats_differ: int
    kind: str = ""
    detail: str = ""

    @property
    def ok(self) -> bool:
        return not self.kind


@dataclass(slots=True)
class Report:
    """All layers, the routing extremes and the token buckets of one layer."""

    layers: list[LayerReport] = field(default_factory=list)
    extremes: dict[str, float] = field(default_factory=dict)
    buckets: dict[int, float] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        return {"layers": [asdict(r) for r in self.layers], "extremes": self.extremes, "buckets": self.buckets}


def tokens_per_rank(geometry: Geometry, at_least: int = 8) -> int:
    """Enough tokens that every expert is used at least twice, at most mtpr."""
    need = -(-2 * geometry.experts // (geometry.world_size * geometry.topk))
    return min(max(at_least, need + need % 2), geometry.mtpr)


def make_batch(geometry: Geometry, seed: int, tokens: int, routing: str = "balanced") -> Batch:
    """The same batch on every rank, from a CPU generator.

    routing: "balanced" (every expert in turn, shuffled), "one_rank" (only experts of rank 0, so that the other ranks
    receive nothing), "one_expert" (expert 1 in every token, the others spread).
    """
    w, k, e, h = geometry.world_size, geometry.topk, geometry.experts, geometry.hidden
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((w, tokens, h), generator=generator)
    x[:, 1::2] *= LOUD
    if routing == "one_rank":
        pool = min(geometry.experts_per_rank, e)
        ids = torch.stack([torch.randperm(max(pool, k), generator=generator)[:k] for _ in range(w * tokens)])
    else:
        rows = []
        deck: list[int] = []
        for _ in range(w * tokens):
            row: list[int] = [1 % e] if routing == "one_expert" else []
            while len(row) < k:
                if not deck:
                    deck = torch.randperm(e, generator=generator).tolist()
                at = next((i for i in range(len(deck) - 1, -1, -1) if deck[i] not in row), None)
                if at is None:
                    deck = torch.randperm(e, generator=generator).tolist()
                    continue
                row.append(deck.pop(at))
            rows.append(row)
        ids = torch.tensor(rows)
    # All weights are of one size, so that each of a token's K experts shows; each differs.
    weights = (0.75 + 0.5 * torch.rand((w, tokens, k), generator=generator)) * (2.5 / k)
    return Batch(x.to(torch.bfloat16), ids.view(w, tokens, k).to(torch.int32), weights)


def _numbers(packed: torch.Tensor, scale_e8m0: torch.Tensor) -> torch.Tensor:
    """[N, K/2] bytes and [N, K/32] scales to float32 [N, K]: one table look-up gives both values of a byte."""
    positive = torch.tensor(quant.FP4_VALUES)
    value = torch.cat((positive, -positive))
    byte = torch.arange(256)
    pairs = torch.view_as_complex(torch.stack((value[byte & 15], value[byte >> 4]), dim=-1)).to(packed.device)
    rows, blocks = scale_e8m0.shape
    values = torch.view_as_real(pairs[packed.int()]).view(rows, blocks, quant.BLOCK)
    return values.mul_(torch.exp2(scale_e8m0.float() - 127.0).unsqueeze(-1)).flatten(-2)


def partial(raw: Weights, batch: Batch, geometry: Geometry, rank: int, limit: float | None = None) -> torch.Tensor:
    """float32 [W*n, H]: what the experts of `rank` contribute to every token. Plain torch, expert by expert.

    limit: None for the geometry's; 0 for none.
    """
    limit = geometry.swiglu_limit if limit is None else limit
    device = raw[0].device
    x = batch.x.flatten(0, 1).to(device)
    ids, weights = batch.ids.flatten(0, 1).cpu(), batch.weights.flatten(0, 1).to(device)
    out = torch.zeros(x.shape, dtype=torch.float32, device=device)
    first = rank * geometry.experts_per_rank
    for local in range(geometry.experts_per_rank):
        token, slot = (t.to(device) for t in (ids == first + local).nonzero(as_tuple=True))
        if not len(token):
            continue
        w13 = _numbers(raw[0][local], raw[1][local])
        gate, up = (x[token].float() @ w13.T).chunk(2, dim=-1)
        del w13
        if limit > 0:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        a = torch.nn.functional.silu(gate) * up
        y = a @ _numbers(raw[2][local], raw[3][local]).T
        out.index_add_(0, token, y * weights[token, slot].unsqueeze(-1))
    return out


def unshuffled(layer: ConvertedLayer, *, gate_up: bool) -> Weights:
    """The raw tensors as a kernel that reads `gate_up` sees them, whatever layout the bytes were written in."""
    e, rows, packed = layer.w13_shape
    _, hidden, half = layer.w2_shape
    scale_shape = (e, rows, packed // 16)
    w13 = layout.unshuffle_w13(layer.w13.view(layer.w13_shape), gate_up=gate_up)
    flat = layer.w13_scale.flatten()
    if gate_up:  # without the pads that the separated layout may have
        flat = flat[: e * rows * (packed // 16)].view(scale_shape)
    w13_scale = layout.unshuffle_w13_scale(flat, gate_up=gate_up, shape=scale_shape)
    w2 = layout.unshuffle_w2(layer.w2.view(layer.w2_shape))
    return w13, w13_scale, w2, layout.unshuffle_w2_scale(layer.w2_scale, (e, hidden, half // 16))


# ---- what typical faults would do to the weights --------------------------------------------------------------------


Change = Callable[[torch.Tensor], torch.Tensor]


def _halves_swapped(t: torch.Tensor) -> torch.Tensor:
    return torch.cat(t.chunk(2, dim=1)[::-1], dim=1)


def _interleaved(t: torch.Tensor, rows: int = 1) -> torch.Tensor:
    """Runs of rows g u g u ... read as gate first, then up."""
    e, n, k = t.shape
    return t.view(e, n // (2 * rows), 2, rows, k).transpose(1, 2).reshape(t.shape)


def _separated(t: torch.Tensor, rows: int = 1) -> torch.Tensor:
    """The opposite mistake."""
    e, n, k = t.shape
    return t.view(e, 2, n // (2 * rows), rows, k).transpose(1, 2).reshape(t.shape)


def _nibbles(t: torch.Tensor) -> torch.Tensor:
    return (t << 4) | (t >> 4)


def _roll(shift: int, dim: int) -> Change:
    return lambda t: t.roll(shift, dims=dim)


def _on(w: Weights, **change: Change) -> Weights:
    names = ("w13", "s13", "w2", "s2")
    a, b, c, d = (change[n](t) if n in change else t for n, t in zip(names, w, strict=True))
    return a, b, c, d


def _only(name: str, change: Change) -> Callable[[Weights], Weights]:
    return lambda w: _on(w, **{name: change})


def _mispaired(change: Callable[[torch.Tensor, int], torch.Tensor], rows: int) -> Callable[[Weights], Weights]:
    return lambda w: _on(w, w13=lambda t: change(t, rows), s13=lambda t: change(t, rows))


def _shifted(step: int) -> Callable[[Weights], Weights]:
    return lambda w: _on(w, w13=_roll(step, 0), s13=_roll(step, 0), w2=_roll(step, 0), s2=_roll(step, 0))


VARIANTS: dict[str, tuple[Callable[[Weights], Weights], ...]] = {
    "gate_up_swapped": (lambda w: _on(w, w13=_halves_swapped, s13=_halves_swapped),),
    # Row by row, and in the 16 rows of a tile: what comes of laying out separated and reading interleaved.
    "gate_up_mispaired": tuple(_mispaired(change, rows) for rows in (1, 16) for change in (_interleaved, _separated)),
    "scale_layout": (
        *(
            _only(n, f)
            for n in ("s13", "s2")
            for f in (_roll(1, 1), _roll(-1, 1), _roll(1, 2), _roll(-1, 2), _roll(1, 0), _roll(-1, 0))
        ),
        lambda w: _on(w, s13=_halves_swapped),
        lambda w: _on(w, s13=_interleaved),
        lambda w: _on(w, s13=_separated),
    ),
    "nibbles_swapped": (
        lambda w: _on(w, w13=_nibbles, w2=_nibbles),
        lambda w: _on(w, w13=_nibbles),
        lambda w: _on(w, w2=_nibbles),
    ),
    "experts_shifted": tuple(_shifted(step) for step in (1, -1)),
}


def rel_l2(got: torch.Tensor, want: torch.Tensor) -> float:
    """||got - want|| / ||want||; infinity when either is not finite or only `want` is zero."""
    error, size = (got.double() - want.double()).norm().item(), want.double().norm().item()
    if error != error or size != size:
        return float("inf")
    return error / size if size else (0.0 if error == 0 else float("inf"))


def row_rel(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Per row relL2 [rows]; not finite is infinity; a row that should be zero is held against the mean row."""
    error = (got.double() - want.double()).norm(dim=-1)
    size = want.double().norm(dim=-1)
    floor = size.mean().clamp(min=1e-30)
    return torch.nan_to_num(error / torch.where(size > 0, size, floor), nan=float("inf"))


# ---- the test -------------------------------------------------------------------------------------------------------


class SelfTest:
    """Collects expectations at load time and judges the kernel at start. One object per process."""

    def __init__(
        self,
        *,
        group_sum: Callable[[torch.Tensor], torch.Tensor],
        local_ranks: Sequence[int],
        seed: int = 2026,
        repeats: int = 256,
        sweep: bool = True,
    ) -> None:
        """repeats: repeated calls in all, divided among the layers (at least 4 each). sweep: extremes and buckets."""
        self._sum = group_sum
        self._ranks = tuple(local_ranks)
        self._seed = seed
        self._repeats = repeats
        self._sweep = sweep
        self.report: Report | None = None
        """Of the last verify, also of one that raised: the evidence shows figures of a start that was stopped."""
        self._geometry: dict[str, Geometry] = {}
        self._partials: dict[tuple[str, int, str], torch.Tensor] = {}

    def batch(self, name: str, routing: str = "balanced") -> Batch:
        """The layer's batch: seeded by the layer's position, so that all ranks make the same one."""
        geometry = self._geometry[name]
        order = list(self._geometry).index(name)
        salt = {"balanced": 0, "one_rank": 1, "one_expert": 2, "other": 3}[routing]
        kind = "balanced" if routing == "other" else routing
        return make_batch(geometry, self._seed * 1_000_003 + order * 7 + salt, tokens_per_rank(geometry), kind)

    def _routings(self, name: str) -> tuple[str, ...]:
        if not self._sweep or name != next(iter(self._geometry)):
            return ("balanced",)
        # With fewer experts on a rank than a token has slots, no token can stay on one rank.
        one_rank = self._geometry[name].experts_per_rank >= self._geometry[name].topk
        return ("balanced", "one_rank", "one_expert") if one_rank else ("balanced", "one_expert")

    def capture(
        self,
        name: str,
        geometry: Geometry,
        w13: torch.Tensor,
        w13_scale: torch.Tensor,
        w2: torch.Tensor,
        w2_scale: torch.Tensor,
    ) -> None:
        """Keeps this rank's contribution [W*n, H] float32, from the raw tensors (V4-Pro: 3.5 MiB a layer)."""
        self._geometry.setdefault(name, geometry)
        for routing in self._routings(name):
            with torch.inference_mode(False), torch.no_grad():
                value = partial((w13, w13_scale, w2, w2_scale), self.batch(name, routing), geometry, geometry.rank)
            self._partials[name, geometry.rank, routing] = value

    def verify_own(self, layers: Mapping[str, MegaExperts]) -> Report:
        """verify() with ATOM's layers: one rank per process."""

        def run(name: str, inputs: Sequence[RankInput]) -> list[torch.Tensor]:
            (x, ids, weights), experts = inputs[0], layers[name]
            device = experts.layer.w13.device
            return [experts.run(x.to(device), weights.to(device), ids.to(device))]

        return self.verify(run, lambda name, _rank: layers[name].layer)

    def verify(self, run: Run, converted: Callable[[str, int], ConvertedLayer]) -> Report:
        """Judges all captured layers on all ranks together.

        Raises:
            Problem: "selftest", a reason per failed layer (at most 5) with figures and likely kind. All ranks raise.
        """
        report = self.report = Report()
        repeats = max(4, -(-self._repeats // max(1, len(self._geometry))))
        for name in self._geometry:
            report.layers.append(self._layer(name, run, converted, repeats))
            # Only as many are reported, and telling the kind of each further one costs a second of CPU. All figures
            # are sums over the group, so all ranks stop at the same layer.
            if sum(not layer.ok for layer in report.layers) == REPORTED_LAYERS:
                self._raise(report)
        if self._sweep and self._geometry:
            self._sweep_first(run, report)
        self._raise(report)
        self._partials.clear()
        return report

    # ---- parts of verify -------------------------------------------------------------------------------------------

    def _outputs(self, name: str, run: Run, batch: Batch) -> list[torch.Tensor]:
        return [o.clone() for o in run(name, [batch.of(r) for r in self._ranks])]

    def _everyone(self, outputs: list[torch.Tensor], geometry: Geometry) -> torch.Tensor:
        """[W*n, H] float32: the outputs of all ranks, by a sum in which each rank fills its own rows."""
        n = outputs[0].shape[0]
        table = torch.zeros((geometry.world_size, n, geometry.hidden), dtype=torch.float32, device=outputs[0].device)
        for rank, out in zip(self._ranks, outputs, strict=True):
            # NaN would spread to nobody else's rows, but inf - inf could; both are marked by a huge finite number.
            table[rank] = torch.nan_to_num(out.float(), nan=1e30, posinf=1e30, neginf=-1e30)
        return self._sum(table).flatten(0, 1)

    def _expected(self, name: str, routing: str) -> torch.Tensor:
        return self._sum(torch.stack([self._partials[name, r, routing] for r in self._ranks]).sum(0))

    def _layer(self, name: str, run: Run, converted: Callable[[str, int], ConvertedLayer], repeats: int) -> LayerReport:
        geometry = self._geometry[name]
        batch, other = self.batch(name), self.batch(name, "other")
        before = self._outputs(name, run, other)
        first = self._outputs(name, run, batch)
        differ = 0
        for i in range(repeats):
            if i % 2:  # a changing batch in between: a buffer that is not rewritten shows
                differ += self._differs(self._outputs(name, run, other), before)
            else:
                differ += self._differs(self._outputs(name, run, batch), first)
        differ = int(self._sum(torch.tensor([float(differ)], device=first[0].device)).item())

        got, want = self._everyone(first, geometry), self._expected(name, "balanced")
        rows = row_rel(got, want)
        loud = torch.zeros(rows.shape[0], dtype=torch.bool, device=rows.device)
        loud.view(geometry.world_size, -1)[:, 1::2] = True
        result = LayerReport(
            name, rel_l2(got[~loud], want[~loud]), rel_l2(got[loud], want[loud]), float(rows.max()), repeats, differ
        )
        bound, row_bound = LAYER_BOUND[geometry.quant], ROW_BOUND[geometry.quant]
        wrong = max(result.rel_quiet, result.rel_loud) > bound or result.rel_worst_row > row_bound
        if wrong:
            previous = self._everyone(before, geometry)
            result.kind, result.detail = self._diagnose(name, got, want, rows > row_bound, previous, converted)
        elif differ:
            result.kind = "non_deterministic"
            result.detail = f"{differ} of {repeats} repeated calls were not bit-equal (all ranks counted)"
        return result

    @staticmethod
    def _differs(now: list[torch.Tensor], then: list[torch.Tensor]) -> int:
        return int(
            not all(torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in zip(now, then, strict=True))
        )

    def _sweep_first(self, run: Run, report: Report) -> None:
        """One layer over the routing extremes and every token bucket (rows are independent of each other)."""
        name = next(iter(self._geometry))
        geometry = self._geometry[name]
        for routing in self._routings(name)[1:]:
            got = self._everyone(self._outputs(name, run, self.batch(name, routing)), geometry)
            report.extremes[routing] = float(row_rel(got, self._expected(name, routing)).max())
        batch = self.batch(name)
        n = batch.x.shape[1]
        want = self._expected(name, "balanced").view(geometry.world_size, n, -1)
        tokens = 1
        while tokens <= geometry.mtpr:
            at = torch.arange(tokens) % n
            outs = run(name, [(x[at], i[at], w[at]) for x, i, w in (batch.of(r) for r in self._ranks)])
            worst = max(
                float(row_rel(o.float(), want[r][at.to(o.device)]).max())
                for r, o in zip(self._ranks, outs, strict=True)
            )
            table = torch.zeros(geometry.world_size, dtype=torch.float64, device=outs[0].device)
            table[self._ranks[0]] = min(worst, 1e30)
            report.buckets[tokens] = float(self._sum(table).max())
            tokens *= 2

    def _raise(self, report: Report) -> None:
        reasons = [
            Reason(
                "selftest",
                f"{r.layer}: relL2 {r.rel_quiet:.4f} (quiet) {r.rel_loud:.4f} (loud), "
                f"worst token {r.rel_worst_row:.4f}, "
                f"{r.repeats_differ} of {r.repeats} repeats differ; likely {r.kind}: {r.detail}",
                "the fused layer does not compute what the checkpoint's own tensors say",
                _FIXES.get(r.kind, "do not serve; report these figures with the image's version"),
            )
            for r in report.layers
            if not r.ok
        ]
        if self._geometry:
            bound = ROW_BOUND[next(iter(self._geometry.values())).quant]
            reasons += [
                Reason("selftest", f"{what}: worst token relL2 {value:.4f}, bound {bound}", why, _FIXES["kernel"])
                for what, value, why in (
                    *(
                        (f"routing extreme {k}", v, "skewed routing meets other code")
                        for k, v in report.extremes.items()
                    ),
                    *(
                        (f"bucket of {k} tokens", v, "it runs another kernel variant")
                        for k, v in report.buckets.items()
                    ),
                )
                if value > bound
            ]
        if reasons:
            raise Problem.of(reasons[:REPORTED_LAYERS], exit_code=Exit.CHECK_FAILED)

    # ---- what kind of fault ------------------------------------------------------------------------------------------

    def _diagnose(
        self,
        name: str,
        got: torch.Tensor,
        want: torch.Tensor,
        bad: torch.Tensor,
        previous: torch.Tensor,
        converted: Callable[[str, int], ConvertedLayer],
    ) -> tuple[str, str]:
        geometry, batch = self._geometry[name], self.batch(name)
        raw = {r: unshuffled(converted(name, r), gate_up=geometry.gate_up) for r in self._ranks}
        kind_votes = self._judge_weights(name, raw, batch)
        if kind_votes:
            return kind_votes
        if float(got.abs().max()) >= 1e30:
            return "not_finite", "the weights are right, the kernel returned NaN or infinity"

        def total(change: Callable[[Weights], Weights], b: Batch = batch, limit: float | None = None) -> torch.Tensor:
            return self._sum(torch.stack([partial(change(raw[r]), b, geometry, r, limit) for r in self._ranks]).sum(0))

        def same(w: Weights) -> Weights:
            return w

        flat = Batch(batch.x, batch.ids, torch.ones_like(batch.weights))
        drop_last = Batch(batch.x, batch.ids, batch.weights.clone())
        drop_last.weights[..., -1] = 0
        turned = Batch(batch.x, batch.ids, batch.weights.roll(1, dims=-1))
        other_limit = 0.0 if geometry.swiglu_limit > 0 else 10.0
        candidates: list[tuple[str, Callable[[], torch.Tensor]]] = [
            ("stale_buffer", lambda: previous),
            (
                "clamp_missing" if geometry.swiglu_limit > 0 else "clamp_unexpected",
                lambda: total(same, limit=other_limit),
            ),
            ("weights_ignored", lambda: total(same, flat)),
            ("weights_misordered", lambda: total(same, turned)),
            ("slot_dropped", lambda: total(same, drop_last)),
        ]
        moved = [Batch(batch.x, (batch.ids + step) % geometry.experts, batch.weights) for step in (1, -1)]
        candidates += [("ids_shifted", functools.partial(total, same, m)) for m in moved]
        candidates += [(kind, functools.partial(total, c)) for kind, changes in VARIANTS.items() for c in changes]
        base, best = rel_l2(got, want), (LAYER_BOUND[geometry.quant], "")
        for kind, make in candidates:
            figure = rel_l2(got, make())
            if figure < best[0] and figure < base * 0.7:
                best = (figure, kind)
        if best[1]:
            return best[1], f"the converted weights are right; the output is what {best[1]} gives (relL2 {best[0]:.4f})"
        return _localise(got, want, bad, batch, geometry, previous)

    def _judge_weights(self, name: str, raw: dict[int, Weights], batch: Batch) -> tuple[str, str] | None:
        """Compares each rank's converted weights with its captured partial; None when all ranks' are right.

        Every rank takes part in the sums, and all return the same answer: the fault of the lowest rank that has one.
        """
        geometry = self._geometry[name]
        kinds = [*VARIANTS, "one_expert", "several_experts", "weights_unknown"]
        votes = torch.zeros((geometry.world_size, 2 + geometry.experts_per_rank), dtype=torch.float64)
        for rank, w in raw.items():
            want = self._partials[name, rank, "balanced"]
            if rel_l2(partial(w, batch, geometry, rank), want) <= WEIGHTS_BOUND:
                continue
            votes[rank, 0] = 1
            # Where every token uses every expert, no token tells them apart; an emptied one still shows in its bytes.
            experts = _empty_experts(w) or self._wrong_experts(w, want, batch, geometry, rank)
            votes[rank, 2 + torch.tensor(experts, dtype=torch.long)] = 1
            kind = next(
                (
                    k
                    for k, changes in VARIANTS.items()
                    for c in changes
                    if rel_l2(partial(c(w), batch, geometry, rank), want) <= WEIGHTS_BOUND
                ),
                "one_expert"
                if len(experts) == 1
                else ("several_experts" if 0 < len(experts) < geometry.experts_per_rank else "weights_unknown"),
            )
            votes[rank, 1] = kinds.index(kind)
        votes = self._sum(votes.to(next(iter(raw.values()))[0].device)).cpu()
        wrong = [r for r in range(geometry.world_size) if votes[r, 0]]
        if not wrong:
            return None
        first = wrong[0]
        experts = [first * geometry.experts_per_rank + i for i in votes[first, 2:].nonzero().flatten().tolist()]
        kind = kinds[int(votes[first, 1])]
        where = "all ranks" if len(wrong) == geometry.world_size else f"ranks {wrong}"
        return kind, f"the converted weights of {where} differ from the checkpoint; rank {first}: experts {experts}"

    @staticmethod
    def _wrong_experts(w: Weights, want: torch.Tensor, batch: Batch, geometry: Geometry, rank: int) -> list[int]:
        """Local experts all of whose tokens are wrong, and that no right token uses."""
        bad = (row_rel(partial(w, batch, geometry, rank), want) > WEIGHTS_BOUND).cpu()
        return [
            e - rank * geometry.experts_per_rank
            for e in range(rank * geometry.experts_per_rank, (rank + 1) * geometry.experts_per_rank)
            if _all_bad(batch.ids.flatten(0, 1).cpu() == e, bad)
        ]


def _empty_experts(w: Weights) -> list[int]:
    """Local experts whose w13 or w2 is one byte throughout."""
    flat = [t.flatten(1) for t in (w[0], w[2])]
    return [e for e in range(len(w[0])) if any(bool((t[e] == t[e, 0]).all()) for t in flat)]


def _all_bad(uses: torch.Tensor, bad: torch.Tensor) -> bool:
    rows = uses.any(-1)
    return bool(rows.any()) and bool(bad[rows].all())


def _localise(
    got: torch.Tensor, want: torch.Tensor, bad: torch.Tensor, batch: Batch, geometry: Geometry, previous: torch.Tensor
) -> tuple[str, str]:
    """Names the smallest set of tokens, experts or columns that holds the error."""
    bad = bad.cpu()
    ids = batch.ids.flatten(0, 1).cpu()
    n = batch.x.shape[1]
    stale = (got == previous).all(-1).cpu() & bad
    if bool(stale.any()):
        return "stale_buffer", f"{int(stale.sum())} of {int(bad.sum())} wrong tokens equal the previous call's output"
    worst = int(((got - want).norm(dim=-1) / want.norm(dim=-1).clamp(min=1e-30)).argmax())
    error = (got[worst] - want[worst]).abs() > 0.5 * (got[worst] - want[worst]).abs().max()
    columns = error.nonzero().flatten()
    experts = [e for e in range(geometry.experts) if _all_bad(ids == e, bad)]
    owners = [r for r in range(geometry.world_size) if _all_bad(ids // geometry.experts_per_rank == r, bad)]
    sources = sorted({int(t) // n for t in bad.nonzero().flatten()})
    covered = (ids.unsqueeze(-1) == torch.tensor(experts or [-1])).any(-1).any(-1)
    if len(experts) == 1 and bool((covered == bad).all()):
        return "one_expert", f"expert {experts[0]} of rank {experts[0] // geometry.experts_per_rank}"
    if len(owners) == 1 and geometry.world_size > 1 and bool((covered | ~bad).all()):
        return "one_rank", f"tokens that use experts of rank {owners[0]} are wrong"
    if int(bad.sum()) < len(bad) // 4 and int(columns.max() - columns.min()) < geometry.hidden // 2:
        return "one_tile", f"{int(bad.sum())} tokens, columns {int(columns.min())} to {int(columns.max())}"
    if 0 < len(experts) < geometry.experts and bool((covered == bad).all()):
        return "several_experts", f"experts {experts[:16]}"
    if len(sources) == 1 and geometry.world_size > 1:
        return "one_source_rank", f"only tokens of rank {sources[0]} are wrong: its dispatch or its combine"
    return "kernel", f"{int(bad.sum())} of {len(bad)} tokens are wrong, of ranks {sources}"


_LAYOUT_FIX = "the adapter converts weights for another kernel: check the FlyDSL commit and the adapter's version"
_FIXES = {
    "gate_up_swapped": _LAYOUT_FIX,
    "gate_up_mispaired": _LAYOUT_FIX,
    "scale_layout": _LAYOUT_FIX,
    "nibbles_swapped": _LAYOUT_FIX,
    "experts_shifted": "expert placement and kernel disagree: check the EP size and that EPLB is off",
    "one_expert": "reload; if the same expert fails again, verify the checkpoint's shards and that GPU's memory",
    "clamp_missing": "the loaded kernels ignore swiglu_limit: use the edited kernels of the image",
    "non_deterministic": "a race or a faulty GPU: do not serve from this node; report the log and the status files",
    "kernel": "do not serve; report these figures with the log and the status files",
}
