"""config.json: the profile's dimensions, and what the engine would take the experts for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megamoe.deploy.profiles import Profile, load_profile, names
from megamoe.envelope import Finding
from megamoe.verify_model.experts import BLOCK
from megamoe.verify_model.files import json_file
from megamoe.verify_model.walk import FETCH, finding


def config(root: Path, profile: Profile | None) -> tuple[list[Finding], dict[str, Any]]:
    """(findings, content): config.json is there and, for a profile, says the profile's dimensions."""
    path = root / "config.json"
    why = "no engine can tell what the model is"
    if not path.exists():
        return [finding("CONFIG_MISSING", "config.json is missing", why, FETCH, file=root)], {}
    raw, problems = json_file(path, "CONFIG_INVALID", why)
    if not problems and not isinstance(raw, dict):
        problems = [finding("CONFIG_INVALID", "config.json is not an object", why, FETCH, file=path)]
    if problems or not isinstance(raw, dict):
        return problems, {}
    if profile is None:
        return [], raw
    out = []
    wanted: dict[tuple[str, ...], Any] = {
        ("moe_hidden_padded", "hidden_size"): profile.hidden,
        ("moe_intermediate_size",): profile.inter,
        ("n_routed_experts", "num_experts"): profile.experts,
        ("num_experts_per_tok",): profile.topk,
        ("num_hidden_layers",): profile.layers,
        ("vocab_size",): profile.vocab,
    }
    for keys, value in wanted.items():
        found = next((raw[k] for k in keys if k in raw), None)
        if value is not None and found != value:
            said = f"is {ascii(found)[:60]}" if found is not None else "is missing"
            out.append(
                finding(
                    "CONFIG_FIELD",
                    f"{' or '.join(keys)} {said}, profile {profile.name} has {value}",
                    "kernels, limits and memory are computed for the profile's model",
                    "give the right directory, or the right profile",
                    file=path,
                )
            )
    if profile.swiglu_limit and raw.get("swiglu_limit") != profile.swiglu_limit:
        out.append(
            finding(
                "CONFIG_SWIGLU",
                f"swiglu_limit is {ascii(raw.get('swiglu_limit'))[:60]}, profile {profile.name} has "
                f"{profile.swiglu_limit:g}",
                "a missing clamp costs accuracy without an error",
                "give the official checkpoint's config.json",
                file=path,
            )
        )
    out += _quantisation(raw, profile, path)
    dtype = raw.get("expert_dtype")
    if profile.weights == "mxfp4" and dtype is not None and dtype not in ("fp4", "mxfp4"):
        out.append(
            finding(
                "EXPERT_DTYPE",
                f"expert_dtype is {ascii(dtype)[:60]}, the fused backend takes fp4",
                "this is a look-alike with other experts",
                "fetch the official fp4 checkpoint",
                file=path,
            )
        )
    return out, raw


def _quantisation(raw: dict[str, Any], profile: Profile, path: Path) -> list[Finding]:
    """What ATOM would take the routed experts for, from config.json alone (atom/models/deepseek_v4.py)."""
    section = raw.get("quantization_config")
    if profile.weights != "mxfp4" or not isinstance(section, dict):
        return []
    words = " ".join(str(section.get(k) or "").lower() for k in ("quant_method", "fmt"))
    if not any(known in words for known in ("fp4", "fp8", "quark")):
        return [
            finding(
                "QUANT_METHOD",
                f"quantization_config is {words.strip()[:60]!r}, the fused backend takes fp4 experts with e8m0 scales",
                "another quantiser's bytes read by these kernels give fluent nonsense",
                f"fetch {profile.model}",
                file=path,
            )
        ]
    out = []
    group = section.get("group_size")
    if "nvfp4" in words or ("fp4" in words and group not in (None, BLOCK)):
        out.append(
            finding(
                "QUANT_GROUP",
                f"quantization_config is {words.strip()[:60]!r} with group_size {ascii(group)[:20]}, the fused backend "
                f"takes one e8m0 scale for {BLOCK} weights",
                "blocks of another size have their scales elsewhere",
                f"fetch {profile.model}",
                file=path,
            )
        )
    if not raw.get("expert_dtype") and "fp4" not in words and "fp8" in words and profile.engine == "atom":
        out.append(
            finding(
                "EXPERT_DTYPE_HINT",
                f"config.json has no expert_dtype and quant_method is {words.strip()[:60]!r}",
                "ATOM then takes the routed experts for FP8, whatever the shards hold",
                "use the official config.json, which says expert_dtype: fp4",
                file=path,
            )
        )
    return out


def likely_profile(raw: dict[str, Any]) -> Profile | None:
    """The profile whose dimensions config.json has, when exactly one has them; for a check that nobody asked for."""
    found = [
        p
        for p in map(load_profile, names())
        if (p.hidden, p.inter, p.experts)
        == (raw.get("hidden_size"), raw.get("moe_intermediate_size"), raw.get("n_routed_experts"))
    ]
    return found[0] if len(found) == 1 else None
