"""The routed experts as the shard headers give them: packed fp4 of the profile's shape, e8m0 scales, all of them."""

from __future__ import annotations

import re
from collections import defaultdict

from megamoe.deploy.profiles import Profile
from megamoe.envelope import Finding
from megamoe.verify_model.headers import Tensor
from megamoe.verify_model.walk import finding

EXPERT = re.compile(
    r"(?P<layer>.*?)(?:^|\.)experts\.(?P<number>\d+)\.(?P<part>w1|w2|w3|gate_proj|up_proj|down_proj)\.weight$")
DOWN = ("w2", "down_proj")
FP4 = ("I8", "U8", "F4")
E8M0 = ("F8_E8M0", "U8")
SCALES = ("scale", "weight_scale", "weight_scale_inv")
BLOCK = 32  # weights per e8m0 scale (OCP MX)
SAMPLE = 8  # so few experts in a layer, or tensors in all, are a sample, whose completeness nobody claims


def experts(tensors: dict[str, Tensor], profile: Profile) -> list[Finding]:
    """EXPERTS_NOT_FOUND, EXPERT_DTYPE, EXPERT_SHAPE, EXPERT_SCALE and EXPERTS_COUNT, one of each at most."""
    found = {n: m for n in tensors if "shared" not in n and (m := EXPERT.search(n))}
    if not found:
        return [
            finding(
                "EXPERTS_NOT_FOUND",
                "no routed expert tensor (…experts.N.w1.weight) in the shards",
                "the fused backend cannot be fed",
                "give the official checkpoint of the profile",
            )
        ]
    out: dict[str, Finding] = {}
    layers: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, match in sorted(found.items()):
        layers[match["layer"]][int(match["number"][:6])].add(match["part"])
        rows, columns = (profile.hidden, profile.inter) if match["part"] in DOWN else (profile.inter, profile.hidden)
        for each in (_weight(name, tensors[name], rows, columns, profile), _scale(name, tensors, rows, columns)):
            if each is not None:
                out.setdefault(each.code, each)
    if "EXPERT_DTYPE" in out:  # the scales of another quantiser are no second fault
        out.pop("EXPERT_SCALE", None)
    if len(tensors) > SAMPLE and (each := _count(layers, profile)):
        out[each.code] = each
    return list(out.values())


def _weight(name: str, tensor: Tensor, rows: int, columns: int, profile: Profile) -> Finding | None:
    """rows, columns: of the unpacked weight; I8 and U8 hold two fp4 values a byte, F4 counts them one by one."""
    shape = (rows, columns) if tensor.dtype == "F4" else (rows, columns // 2)
    if tensor.dtype in FP4 and tensor.shape == shape:
        return None
    kind = "FP8" if tensor.dtype.startswith("F8") else tensor.dtype
    return finding(
        "EXPERT_SHAPE" if tensor.dtype in FP4 else "EXPERT_DTYPE",
        f"{name} is {kind} ({tensor.dtype}) {list(tensor.shape)}, the fused backend takes packed fp4: "
        f"I8 {[rows, columns // 2]}",
        "a look-alike of this model has FP8 routed experts and is mounted by mistake",
        f"fetch {profile.model}" + (f" at revision {profile.revision}" if profile.revision else ""),
    )


def _scale(name: str, tensors: dict[str, Tensor], rows: int, columns: int) -> Finding | None:
    stem = name.removesuffix("weight")
    held = next(((stem + s, tensors[stem + s]) for s in SCALES if stem + s in tensors), None)
    want = (rows, columns // BLOCK)
    if held is None:
        if len(tensors) <= SAMPLE:
            return None
        what = f"{name} has no scale beside it ({', '.join(SCALES)})"
    elif held[1].dtype in E8M0 and held[1].shape == want:
        return None
    else:
        what = (f"{held[0]} is {held[1].dtype} {list(held[1].shape)}, the fused backend takes e8m0 "
                f"(one for {BLOCK} weights): F8_E8M0 {list(want)}")
    return finding("EXPERT_SCALE", what, "other scales, or other blocks (NVFP4 has 16), read as these give fluent "
                   "nonsense", "fetch the checkpoint that the profile names")  # fmt: skip


def _count(layers: dict[str, dict[int, set[str]]], profile: Profile) -> Finding | None:
    """The first layer that has not all experts, each with its three matrices."""
    for layer, held in sorted(layers.items()):
        if len(held) <= SAMPLE < profile.experts:
            continue
        whole = max(held.values(), key=len)
        lacking = [f"experts.{n}.{part}" for n in sorted(held) for part in sorted(whole - held[n])]
        missing = [n for n in range(profile.experts) if n not in held]
        extra = [n for n in held if n >= profile.experts]
        if missing or extra or lacking:
            first = f"; experts.{missing[0]} is missing" if missing else ""
            first += f"; {lacking[0]} is missing" if lacking else ""
            return finding(
                "EXPERTS_COUNT",
                f"{layer or 'the model'} has {len(held)} routed experts, profile {profile.name} has "
                f"{profile.experts}{first}",
                "the router sends tokens to every expert, and the kernels' buffers are made for this number",
                "fetch the checkpoint that the profile names",
            )
    return None
