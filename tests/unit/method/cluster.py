"""Eight ranks in one process: random layers, converted, run by the reference MegaMoE; faults are planted on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from megamoe_atom import layout, reference
from megamoe_atom.experts import Geometry
from megamoe_atom.layout import ConvertedLayer, convert_layer_tensors
from megamoe_atom.selftest import RankInput, SelfTest, Weights

torch.set_num_threads(1)


def geometry(rank: int = 0, **change: object) -> Geometry:
    base = {
        "rank": rank, "world_size": 2, "hidden": 256, "inter": 256, "experts": 8, "topk": 2, "quant": "a8w4",
        "mtpr": 16, "swiglu_limit": 10.0,
    }  # fmt: skip
    return Geometry(**{**base, **change})  # type: ignore[arg-type]


def random_weights(g: Geometry, seed: int) -> Weights:
    """One rank's raw tensors: fp4 codes of all kinds, neighbouring scales differ."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)

    e, h, i = g.experts_per_rank, g.hidden, g.inter
    return (
        draw(0, 256, e, 2 * i, h // 2),
        draw(119, 123, e, 2 * i, h // 32),
        draw(0, 256, e, h, i // 2),
        draw(119, 123, e, h, i // 32),
    )


def convert(raw: Weights) -> ConvertedLayer:
    return convert_layer_tensors(*(t.clone() for t in raw))


class Cluster:
    """All ranks of an EP group with one or more layers. `spoil_output` sees (call number, layer, outputs)."""

    def __init__(self, g: Geometry, *, layers: int = 1, seed: int = 0, kernel_limit: float | None = None) -> None:
        self.geometry = g
        ranks = range(g.world_size)
        self.names = [f"layers.{n}" for n in range(layers)]
        self.raw = {
            (name, r): random_weights(g, seed * 1009 + n * 31 + r) for n, name in enumerate(self.names) for r in ranks
        }
        self.converted = {key: convert(raw) for key, raw in self.raw.items()}
        self.calls = 0
        self.spoil_output: Callable[[int, str, list[torch.Tensor]], list[torch.Tensor]] = lambda _n, _name, o: o
        self.spoil_input: Callable[[list[RankInput]], list[RankInput]] = lambda inputs: inputs
        group = reference.ReferenceGroup(g.world_size)
        limit = g.swiglu_limit if kernel_limit is None else kernel_limit
        self.kernels = []
        for r in ranks:
            c = self.converted[self.names[0], r]
            self.kernels.append(
                reference.MegaMoE(
                    rank=r,
                    world_size=g.world_size,
                    model_dim=g.hidden,
                    inter_dim=g.inter,
                    experts=g.experts,
                    topk=g.topk,
                    quant=g.quant,
                    w1=c.w13,
                    w1_scale=c.w13_scale,
                    w2=c.w2,
                    w2_scale=c.w2_scale,
                    max_tok_per_rank=g.mtpr,
                    group=group,
                    swiglu_limit=limit,
                )
            )
        self.group = group

    def selftest(self, **options: object) -> SelfTest:
        """A self-test that has captured every layer of every rank from the raw weights."""
        test = SelfTest(group_sum=lambda t: t, local_ranks=range(self.geometry.world_size), **options)  # type: ignore[arg-type]
        for (name, r), raw in self.raw.items():
            test.capture(name, geometry_of(self.geometry, r), *raw)
        return test

    def replace(self, change: Callable[[Weights], Weights], rank: int | None = None) -> None:
        """Converts changed raw weights instead: a fault of the layout step on one rank or on all."""
        for (name, r), raw in self.raw.items():
            if rank is None or r == rank:
                self.converted[name, r] = convert(change(raw))

    def run(self, name: str, inputs: Sequence[RankInput]) -> list[torch.Tensor]:
        for r, kernel in enumerate(self.kernels):
            c = self.converted[name, r]
            kernel.bind(c.w13, c.w13_scale, c.w2, c.w2_scale)
            kernel.prepare()
        outs = self.group.forward(self.spoil_input(list(inputs)))
        self.calls += 1
        return self.spoil_output(self.calls, name, outs)

    def verify(self, **options: object):
        options = {"repeats": 4, "sweep": False, **options}
        return self.selftest(**options).verify(self.run, lambda name, r: self.converted[name, r])


def geometry_of(g: Geometry, rank: int) -> Geometry:
    from dataclasses import replace

    return replace(g, rank=rank)


def tensor_layer_of(c: ConvertedLayer) -> tuple[torch.Tensor, ...]:
    return c.w13, c.w13_scale, c.w2, c.w2_scale


__all__ = ["Cluster", "convert", "geometry", "geometry_of", "layout", "random_weights", "tensor_layer_of"]
