"""On one NVIDIA GPU: speed of converting one V4-Pro rank's layer, accuracy of the reference kernel at its shapes.

    PYTHONPATH=atom_patch python3 tests/patch/bench_layout_gpu.py [--json FILE]

Conversion is timed against a device-to-device copy of the same bytes in the same run, so the ratio does not depend on
the card. torch only: this says nothing about the fused kernels' speed on gfx950.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from megamoe_atom import layout, quant
from megamoe_atom.layout_gpu import _proven
from megamoe_atom.reference import MegaMoE, ReferenceGroup

HIDDEN, INTER, EXPERTS, TOPK, EP = 7168, 3072, 384, 6, 8
LOCAL = EXPERTS // EP


def random_layer(seed: int, experts: int = LOCAL) -> tuple[torch.Tensor, ...]:
    """Raw mxfp4 weights with e8m0 scales around 2**-6, so that outputs stay of order one."""
    g = torch.Generator(device="cuda").manual_seed(seed)

    def codes(*shape: int, low: int = 0, high: int = 256) -> torch.Tensor:
        return torch.randint(low, high, shape, dtype=torch.uint8, device="cuda", generator=g)

    return (
        codes(experts, 2 * INTER, HIDDEN // 2),
        codes(experts, 2 * INTER, HIDDEN // 32, low=118, high=122),
        codes(experts, HIDDEN, INTER // 2),
        codes(experts, HIDDEN, INTER // 32, low=118, high=122),
    )


def seconds(work: Callable[[], object], repeats: int = 7) -> list[float]:
    """Wall seconds of each call with the device idle before and after; the first call is a warm-up."""
    times = []
    for turn in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = work()
        torch.cuda.synchronize()
        if turn:
            times.append(time.perf_counter() - start)
        del result
    return times


def conversion() -> dict[str, Any]:
    raw = random_layer(1)
    sizes = [t.numel() for t in raw]
    names = ("w13", "w13_scale", "w2", "w2_scale")
    targets = [torch.empty_like(t) for t in raw]
    copy = seconds(lambda: [d.copy_(s) for d, s in zip(targets, raw, strict=True)])
    rows: dict[str, Any] = {"bytes": dict(zip(names, sizes, strict=True)), "copy_s": statistics.median(copy)}

    torch.cuda.reset_peak_memory_stats()
    out_of_place = seconds(lambda: layout.convert_layer_tensors(*raw, nan_check=False))
    rows["out_of_place_s"] = statistics.median(out_of_place)
    rows["out_of_place_share_of_copy_speed"] = rows["copy_s"] / rows["out_of_place_s"]
    moves = (layout.shuffle_w13, layout.shuffle_w13_scale, layout.shuffle_w2, layout.shuffle_w2_scale)
    for name, tensor, move in zip(names, raw, moves, strict=True):
        alone = statistics.median(seconds(lambda t=tensor: torch.empty_like(t).copy_(t)))
        rows[f"{name}_share_of_copy_speed"] = alone / statistics.median(seconds(lambda t=tensor, m=move: m(t)))

    # In place: each call needs fresh tensors, so that the conversion is not refused as a second one.
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    in_place = seconds(
        lambda: layout.convert_layer_tensors(*(t.view(t.shape) for t in raw), in_place=True, nan_check=False)
    )
    rows["in_place_s"] = statistics.median(in_place)
    rows["in_place_share_of_copy_speed"] = rows["copy_s"] / rows["in_place_s"]
    extra = torch.cuda.max_memory_allocated() - before
    rows["in_place_extra_bytes"] = extra
    rows["in_place_extra_experts"] = extra / (sum(sizes) / LOCAL)
    return rows


def same_as_cpu() -> dict[str, Any]:
    """The GPU's result against the CPU's plain torch, byte for byte, over shapes of both scale layouts."""
    generator = torch.Generator().manual_seed(11)
    compared, different = 0, []
    for experts in (1, 2, 5, 48):
        for rows in (32, 96, 256, 608):
            for columns in (8, 16, 24, 72, 96, 224, 256):
                raw = torch.randint(0, 256, (experts, rows, columns), generator=generator, dtype=torch.uint8)
                for name, move in (("w13", layout.shuffle_w13_scale), ("w2", layout.shuffle_w2_scale)):
                    compared += 1
                    if not torch.equal(move(raw.cuda()).cpu(), move(raw)):
                        different.append([name, experts, rows, columns])
    raws = random_layer(9, experts=5)
    want = layout.convert_layer_tensors(*(t.cpu() for t in raws))
    for in_place in (False, True):
        got = layout.convert_layer_tensors(*(t.clone() for t in raws), in_place=in_place)
        for name in ("w13", "w13_scale", "w2", "w2_scale"):
            compared += 1
            if not torch.equal(getattr(got, name).cpu(), getattr(want, name)):
                different.append([name, in_place])
    return {"pass_used": _proven("cuda:0") is not None, "compared": compared, "different": different}


def accuracy(tokens: int = 32) -> dict[str, Any]:
    """One V4-Pro layer, W=8 simulated, against a float32 oracle with dequantised weights and the raw activations."""
    group = ReferenceGroup(EP)
    raws = [random_layer(100 + rank) for rank in range(EP)]
    for rank, raw in enumerate(raws):
        c = layout.convert_layer_tensors(*raw, nan_check=False)
        MegaMoE(
            rank=rank,
            world_size=EP,
            model_dim=HIDDEN,
            inter_dim=INTER,
            experts=EXPERTS,
            topk=TOPK,
            quant="a8w4",
            w1=c.w13,
            w1_scale=c.w13_scale,
            w2=c.w2,
            w2_scale=c.w2_scale,
            max_tok_per_rank=8192,
            group=group,
        )
    g = torch.Generator(device="cuda").manual_seed(5)
    inputs = []
    for _ in range(EP):
        x = torch.randn(tokens, HIDDEN, device="cuda", generator=g).to(torch.bfloat16)
        ids = torch.stack([torch.randperm(EXPERTS, device="cuda", generator=g)[:TOPK] for _ in range(tokens)]).int()
        weights = torch.rand(tokens, TOPK, device="cuda", generator=g)
        inputs.append((x, ids, weights))
    start = time.perf_counter()
    outs = [o.float() for o in group.forward(inputs)]
    torch.cuda.synchronize()
    took = time.perf_counter() - start
    torch.backends.cuda.matmul.allow_tf32 = False
    error = norm = 0.0
    want = [torch.zeros(tokens, HIDDEN, device="cuda") for _ in range(EP)]
    for expert in range(EXPERTS):
        owner, local = divmod(expert, LOCAL)
        w13 = quant.dequantize_mxfp4(raws[owner][0][local], raws[owner][1][local], torch.float32)
        w2 = quant.dequantize_mxfp4(raws[owner][2][local], raws[owner][3][local], torch.float32)
        for rank, (x, ids, weights) in enumerate(inputs):
            token, slot = (ids == expert).nonzero(as_tuple=True)
            if len(token):
                gate, up = (x[token].float() @ w13.T).split(INTER, dim=-1)
                y = (torch.nn.functional.silu(gate) * up) @ w2.T
                want[rank].index_add_(0, token, y * weights[token, slot].unsqueeze(-1))
    for out, ref in zip(outs, want, strict=True):
        error += float((out - ref).pow(2).sum())
        norm += float(ref.pow(2).sum())
    return {"tokens_per_rank": tokens, "ep_size": EP, "relL2": (error / norm) ** 0.5, "bound": 0.10, "forward_s": took}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(json.dumps({"status": "not_run", "why": "torch sees no GPU"}))
        return 5
    with torch.inference_mode():
        body = {
            "status": "pass",
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "date": subprocess.run(
                ["date", "-u", "+%Y-%m-%dT%H:%MZ"], capture_output=True, text=True, check=True
            ).stdout.strip(),
            "shapes": {"hidden": HIDDEN, "inter": INTER, "local_experts": LOCAL},
            "same_as_cpu": same_as_cpu(),
            "conversion": conversion(),
            "accuracy": accuracy(),
        }
    c, a = body["conversion"], body["accuracy"]
    misses = [
        text
        for bad, text in (
            (c["out_of_place_share_of_copy_speed"] < 0.80, "out of place below 80 % of a copy"),
            (c["in_place_share_of_copy_speed"] < 0.40, "in place below 40 % of a copy"),
            (c["in_place_extra_experts"] > 8, "in place needs more than 8 experts of extra memory"),
            (a["relL2"] >= a["bound"], "relL2 beyond its bound"),
            (bool(body["same_as_cpu"]["different"]), "bytes differ from the CPU's"),
            (not body["same_as_cpu"]["pass_used"], "the scales were moved in plain torch"),
        )
        if bad
    ]
    body["status"], body["misses"] = ("fail" if misses else "pass"), misses
    text = json.dumps(body, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 1 if misses else 0


if __name__ == "__main__":
    raise SystemExit(main())
