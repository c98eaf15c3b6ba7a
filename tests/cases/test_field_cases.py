"""Four further cases for each theme, from the field, each with its healthy twin.

Every case names the public thread where its kind was seen; hosts, paths and numbers are invented. Run through the
commands' own code in this process: what is printed is the envelope that `--json` prints.
"""

from __future__ import annotations

import copy
import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from megamoe.envelope import Outcome, as_json
from test_a11_a12_gate import POLICY, result, samples
from test_a13_bench_report import BENCH, MEASURED

BASE = yaml.safe_load(Path(__file__).with_name("base.yml").read_text())
Run = Callable[[Path], Outcome]


@dataclass(frozen=True)
class Case:
    """must, must_not: words of the whole output; code: 0 pass or warn, else the exit code."""

    theme: str
    source: str
    bad: Run
    exit_code: int
    must: tuple[str, ...]
    must_not: tuple[str, ...]
    twin: Run
    twin_exit: int = 0


def plan(**patch: dict[str, Any]) -> Run:
    def run(tmp_path: Path) -> Outcome:
        from megamoe.plan.command import _outcome

        return _outcome(write_deploy(tmp_path, patch), "", False, "")

    return run


def write_deploy(tmp_path: Path, patch: dict[str, dict[str, Any]]) -> str:
    deploy = copy.deepcopy(BASE)
    for section, values in patch.items():
        deploy[section] = {**deploy[section], **values}
    (tmp_path / "deploy.yml").write_text(yaml.safe_dump(deploy))
    return str(tmp_path / "deploy.yml")


def preflight(facts: dict[str, Any]) -> Run:
    def run(tmp_path: Path) -> Outcome:
        from megamoe.preflight.command import _outcome

        (tmp_path / "facts.json").write_text(json.dumps(facts))
        return _outcome(write_deploy(tmp_path, {}), str(tmp_path / "facts.json"), False)

    return run


def diagnose(*logs: str, facts: dict[str, Any] | None = None) -> Run:
    def run(tmp_path: Path) -> Outcome:
        from megamoe.diagnose.command import _outcome

        paths = []
        for rank, text in enumerate(logs):
            paths.append(str(tmp_path / (f"rank{rank}.log" if len(logs) > 1 else "engine.log")))
            Path(paths[-1]).write_text(text)
        (tmp_path / "f.json").write_text(json.dumps(facts or {}))
        return _outcome(paths, str(tmp_path / "f.json"))

    return run


def shard(path: Path, tensors: dict[str, list[int]]) -> None:
    header: dict[str, Any] = {}
    for i, (name, shape) in enumerate(tensors.items()):
        header[name] = {"dtype": "U8", "shape": shape, "data_offsets": [4 * i, 4 * i + 4]}
    raw = json.dumps(header).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(4 * len(tensors)))


def verify_model(make: Callable[[Path], list[str]]) -> Run:
    def run(tmp_path: Path) -> Outcome:
        from megamoe.verify_model.command import _outcome

        root = tmp_path / "hub" / "snapshots" / "abc"
        root.mkdir(parents=True)
        for name in ("config.json", "tokenizer.json"):
            (root / name).write_text("{}")
        mounts = make(root)
        return _outcome(str(root), mounts, "", "", "")

    return run


def index(root: Path, weight_map: dict[str, str]) -> None:
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def pointer(root: Path, *, whole: bool) -> list[str]:
    shard(root / "model.safetensors", {"a": [4]})
    if not whole:
        (root / "model.safetensors").write_text(
            "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 9876543210\n")
    return []


def tensor_gone(root: Path, *, whole: bool) -> list[str]:
    shard(root / "model-00001-of-00001.safetensors", {"a": [4]} | ({"mtp.fc.weight": [4]} if whole else {}))
    index(root, dict.fromkeys(("a", "mtp.fc.weight"), "model-00001-of-00001.safetensors"))
    return []


def folder(root: Path, *, whole: bool) -> list[str]:
    index(root, {"a": "shards/x.safetensors", "b": "shards/y.safetensors"})
    shard(root / "shards" / "x.safetensors", {"a": [4]})
    if whole:
        shard(root / "shards" / "y.safetensors", {"b": [4]})
    return []


def relative_to_the_wrong_place(root: Path, *, whole: bool) -> list[str]:
    blob = root.parents[1] / "blobs" / "196"
    shard(blob, {"a": [4]})
    (root / "model.safetensors").symlink_to("../../blobs/196" if whole else "hub/blobs/196")
    return [f"{root.parents[1]}:/models/demo"]


def gate(body: dict[str, Any], rows: list[dict[str, Any]] | None = None, **policy: Any) -> Run:
    def run(tmp_path: Path) -> Outcome:
        from megamoe.gate.evidence import load_evidence
        from megamoe.gate.judge import judge
        from megamoe.gate.policy import load_policy

        (tmp_path / "p.json").write_text(json.dumps({**POLICY, **policy}))
        (tmp_path / "r.json").write_text(json.dumps(body))
        listed = None
        if rows is not None:
            listed = str(tmp_path / "s.jsonl")
            Path(listed).write_text("\n".join(map(json.dumps, rows)))
        return judge(load_policy(str(tmp_path / "p.json")), load_evidence(str(tmp_path / "r.json"), listed, None),
                     None, [])  # fmt: skip

    return run


def bench(**patch: Any) -> Run:
    def run(tmp_path: Path) -> Outcome:
        from megamoe.bench_report.judge import judge_bench

        passed = {"status": "pass", "exit_code": 0, "command": "gate", "schema_version": 1, "data": {
            "verdict": "PASS", "image_digest": MEASURED["image_digest"], "args": MEASURED["args"]}}  # fmt: skip
        return judge_bench({**BENCH, **MEASURED, **patch}, passed, None)

    return run


WATCHDOG = (
    "[rank{r}]:[E1107 22:03:59.159782320 ProcessGroupNCCL.cpp:692] [Rank {r}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=473096, OpType=ALLGATHER) ran for 1800004 milliseconds before timing out.\n"
)
SERVING = "10:02:41 Application startup complete.\n10:03:00 POST /v1/completions 200\n"
HW = "HW Exception by GPU node-9 (Agent handle: 0x631351bb5a20) reason :GPU Hang\nAborted (core dumped)\n"
KFD = "ROCk module version 6.8.5 is loaded\nUnable to open /dev/kfd read-write: Permission denied\n"
AVC = (
    'type=AVC msg=audit(1683468487.052:3337): avc:  denied  {{ map }} for  pid=6 comm="python3" '
    'path="/dev/dri/renderD128" scontext=system_u:system_r:container_t:s0 tcontext=system_u:object_r:dri_device_t:s0 '
    "tclass=chr_file permissive={p}\n"
)
IBVERBS = (
    "libibverbs: Warning: couldn't load driver 'libmlx5-rdmav34.so': libmlx5-rdmav34.so: cannot open shared object "
    "file: No such file or directory\n"
)
GOOD_HOST = {
    "host": {"groups": {"video": 44, "render": 105}, "dev": {"/dev/kfd": {"mode": "0660", "uid": 0, "gid": 105}}},
    "image": {"groups": {"video": 44, "render": 105}},
    "probe": {"rocm_smi_exit": 0, "container_groups": [1000, 44, 105], "open_kfd_rdwr": "OK"},
}


def host(**probe: Any) -> dict[str, Any]:
    return {**copy.deepcopy(GOOD_HOST), "probe": {**GOOD_HOST["probe"], **probe}}


CASES = {
    # memory and heap
    "heap-in-a-unit-that-mori-misreads": Case(
        "memory", "ROCm/rocSHMEM pull 392 (a heap variable's unit); ROCm/mori src/shmem/init.cpp",
        plan(env={"MORI_SHMEM_HEAP_SIZE": "0.5G"}), 2, ("MORI_SHMEM_HEAP_SIZE", "0.5G"), ("larger GPU",),
        plan(env={"MORI_SHMEM_HEAP_SIZE": "8192M"})),
    "heap-beside-a-share-that-fills-the-card": Case(
        "memory", "sgl-project/sglang issue 35619; a field note",
        plan(env={"MORI_SHMEM_HEAP_SIZE": "40G"}, args={"gpu_memory_utilization": 0.9}), 2,
        ("gpu_memory_utilization", "heap"), (),
        plan(env={"MORI_SHMEM_HEAP_SIZE": "16G"}, args={"gpu_memory_utilization": 0.85})),
    "kv-pool-of-less-than-one-request": Case(
        "memory", "vllm-project/vllm issue 2418, pull 2163; ROCm/ATOM#2267",
        diagnose("Concurrent capacity vs context length (max_model_len=131072, block_size=128, max_slots=64, "
                 "pool_blocks=900):\n" + SERVING), 1, ("KV_STARVED", "115200"), ("GPU_HARDWARE",),
        diagnose("Concurrent capacity vs context length (max_model_len=131072, block_size=128, max_slots=64, "
                 "pool_blocks=85436):\n" + SERVING)),
    "the-collective-librarys-memory-is-the-gpus": Case(
        "memory", "NVIDIA/nccl issue 1235; rwth-i6/returnn issue 1626",
        diagnose("node-a:9:9 [3] NCCL INFO Connected all rings\nnode-a:9:9 [3] alloc.h:178 NCCL WARN HIP failure 'out "
                 "of memory'\n[rank3]: torch.distributed.DistBackendError: unhandled cuda error\n"), 1,
        ("OOM_AT_LOAD", "gpu_memory_utilization"), ("PEER_GONE", "network"),
        diagnose("node-a:9:9 [3] NCCL INFO Connected all rings\n" + SERVING)),
    # parallel layout
    "tensor-parallel-attention-sums-the-routed-output": Case(
        "layout", "ROCm/ATOM pull 1666; sgl-project/sglang#7692",
        plan(args={"enable_dp_attention": False}), 2, ("enable_dp_attention", "moe_backend"), (),
        plan(args={"enable_dp_attention": False, "enable_expert_parallel": False, "moe_backend": "standard"})),
    "two-capacities-for-one-step": Case(
        "layout", "ROCm/aiter#4439 (one capacity on every rank); pytorch/pytorch issue 97191",
        plan(env={"FUSED_MEGA_DECODE_MTPR": "128"}), 2, ("FUSED_MEGA_DECODE_MTPR", "every rank"), (), plan()),
    "more-ranks-than-gpus": Case(
        "layout", "uccl-project/uccl issue 923 (EP across nodes hangs silently); field note",
        plan(args={"data_parallel": 2}), 2, ("16 ranks", "8"), (), plan(args={"tensor_parallel": 8})),
    "ranks-that-chose-differently-wait-for-ever": Case(
        "layout", "pytorch/pytorch issue 97191; ROCm/aiter#4439",
        diagnose("10:00:00 [rank 0] mode=EXTEND instance=8192\n10:00:00 [rank 1] mode=IDLE instance=128\n" +
                 "".join(WATCHDOG.format(r=r) for r in (0, 1))), 1, ("RANK_DIVERGENCE", "8192", "128"), ("network",),
        diagnose("10:00:00 [rank 0] mode=EXTEND instance=8192\n10:00:00 [rank 1] mode=IDLE instance=8192\n" + SERVING)),
    # container flags
    "podman-with-a-shm-size-in-a-shared-namespace": Case(
        "flags", "Hal0ai/hal0 issue 715; seen with podman 4.3.1: exit 125",
        plan(container={"engine": "podman", "ipc": "container:other", "shm_size": "8g"}), 2,
        ("container:other", "shm_size", "125"), (),
        plan(container={"engine": "podman", "ipc": "private", "shm_size": "8g"})),
    "a-patch-mounted-over-the-image": Case(
        "flags", "vllm-project/vllm issues 2236 and 14942; ROCm/aiter#2843",
        plan(container={"volumes": ["/srv/fix:/usr/local/lib/python3.12/dist-packages/aiter"]}), 2,
        ("digest", "native"), (), plan(container={"volumes": ["/srv/prompts:/data/prompts:ro"]})),
    "the-name-is-taken-by-a-container-that-was-killed": Case(
        "flags", "ansible/ansible issue 64492",
        diagnose('docker: Error response from daemon: Conflict. The container name "/moe" is already in use by '
                 'container "4f5a".\n'), 1, ("CONTAINER_NAME_IN_USE", "docker logs"), ("rm -f", "PORT_IN_USE"),
        diagnose("docker: container moe started\n" + SERVING)),
    "the-device-is-not-on-this-host": Case(
        "flags", "hydrian/stable-diffusion-webui-rocm issue 17; AUTOMATIC1111/stable-diffusion-webui issue 6837",
        diagnose('docker: Error response from daemon: error gathering device information while adding custom device '
                 '"/dev/kfd": no such file or directory.\n'), 1, ("DEVICE_NOT_PASSED", "ls -l /dev/kfd"),
        ("--privileged",), diagnose("docker: container moe started\n" + SERVING)),
    # permissions
    "only-group-video-was-given": Case(
        "permissions", "ROCm/ROCm-docker issue 116",
        preflight(host(container_groups=[1000, 44], open_kfd_rdwr="EACCES")), 4, ("105", "EACCES"),
        ("chmod 777", "--privileged"), preflight(host())),
    "the-node-is-closed-to-its-group": Case(
        "permissions", "ROCm/legacy-rocm-build issue 1211",
        preflight({**host(open_kfd_rdwr=None), "host": {"dev": {"/dev/kfd": {"mode": "0600", "uid": 0, "gid": 105}}}}),
        4, ("0600", "udev"), ("chmod 777",), preflight(host())),
    "the-runtime-cannot-open-kfd-in-a-rootless-container": Case(
        "permissions", "ollama/ollama issue 6685; 89luca89/distrobox issue 1230",
        diagnose(KFD), 1, ("DEVICE_PERMISSION", "group_add"), ("OOM", "chmod"),
        diagnose("ROCk module version 6.8.5 is loaded\n" + SERVING)),
    "selinux-refuses-what-the-groups-allow": Case(
        "permissions", "containers/podman issue 18497; redhat-et/triton-dev-containers issue 61",
        diagnose(AVC.format(p=0)), 1, ("SELINUX_DENIED", "container_use_devices"),
        ("--privileged", "chmod", "group_add"), diagnose(AVC.format(p=1) + SERVING)),
    # model files
    "a-tensor-of-the-index-is-in-no-shard": Case(
        "model", "huggingface/huggingface_hub pull 4728",
        verify_model(lambda root: tensor_gone(root, whole=False)), 2, ("mtp.fc.weight", "TENSOR_MISSING"), (),
        verify_model(lambda root: tensor_gone(root, whole=True))),
    "a-shard-in-a-folder-below-is-missing": Case(
        "model", "unslothai/unsloth pull 7218; Blaizzy/mlx-vlm pull 1827",
        verify_model(lambda root: folder(root, whole=False)), 2, ("shards/y.safetensors",), ("shards/x.safetensors "
            "is",),
        verify_model(lambda root: folder(root, whole=True))),
    "a-link-made-relative-to-another-directory": Case(
        "model", "huggingface/huggingface_hub issue 1388",
        verify_model(lambda root: relative_to_the_wrong_place(root, whole=False)), 2,
        ("LINK_DANGLING", "hub/blobs/196"), (),
        verify_model(lambda root: relative_to_the_wrong_place(root, whole=True))),
    "a-pointer-in-the-place-of-a-shard": Case(
        "model", "vllm-project/vllm pull 57975; hiyouga/LlamaFactory issue 327 (135 bytes a shard)",
        verify_model(lambda root: pointer(root, whole=False)), 2, ("SHARD_DAMAGED", "git lfs pull"), ("claims",),
        verify_model(lambda root: pointer(root, whole=True))),
    # logs
    "every-rank-only-lost-its-peer": Case(
        "logs", "deepspeedai/DeepSpeed issue 6725",
        diagnose("".join(WATCHDOG.format(r=r) for r in range(8))), 1, ("HANG",), ("RANK_DIED_FIRST",),
        diagnose("INFO Watchdog is enabled, timeout set to 1800 s\n" + SERVING)),
    "the-gpu-itself-hung": Case(
        "logs", "ROCm/legacy-rocm-build issue 4021",
        diagnose(HW + "".join(WATCHDOG.format(r=r) for r in (0, 1, 2))), 1, ("GPU_HARDWARE", "drain"),
        ("RANK_DIVERGENCE",), diagnose("INFO hardware exceptions: 0\n" + SERVING)),
    "the-cause-is-in-another-ranks-file": Case(
        "logs", "huggingface/accelerate pull 4139; pytorch/pytorch issue 118369",
        diagnose("11:05:01 watchdog: no progress for 300 s\n", "11:00:01 Traceback (most recent call last):\n"
                 "11:00:01   File \"x.py\", line 3\n11:00:01 KeyError: 'w2'\n", "11:05:02 ConnectionResetError: [Errno "
                 "104] Connection reset by peer\n"), 1, ("RANK_DIED_FIRST", "rank1.log", "KeyError"), ("network",),
        diagnose(*["11:00:00 Application startup complete.\n"] * 3)),
    "a-harmless-warning-stands-before-the-cause": Case(
        "logs", "sgl-project/sglang pull 27209",
        diagnose(IBVERBS + "[rank 3] torch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.50 GiB.\n"), 1,
        ("OOM_AT_LOAD", "rank 3"), ("MISSING_LIBRARY", "libmlx5"), diagnose(IBVERBS + SERVING)),
    # gate inputs
    "nearly-all-answers-are-empty": Case(
        "gate", "EleutherAI/lm-evaluation-harness issue 2847",
        gate(result(0.01, 0.01), samples(1306, 13)), 5, ("1306",), ("accuracy 0.01",),
        gate(result(), samples(5, 1243))),
    "strict-is-zero-and-flexible-is-not": Case(
        "gate", "vllm-project/dllm-plugin pull 45; EleutherAI/lm-evaluation-harness#2034",
        gate(result(strict=0.0), metric="exact_match,strict-match"), 1, ("strict",), ("PASS:",),
        gate(result(strict=0.0))),
    "a-part-of-the-questions": Case(
        "gate", "sgl-project/sglang#20304, #31702, #38725",
        gate(result(**{"n-samples": {"gsm8k": {"original": 1319, "effective": 200}}})), 5, ("200", "1319"), ("PASS:",),
        gate(result())),
    "another-number-of-shots": Case(
        "gate", "princeton-nlp/SimPO issue 73; EleutherAI/lm-evaluation-harness issue 3129",
        gate(result(**{"n-shot": {"gsm8k": 5}})), 5, ("5", "3"), ("PASS:",), gate(result())),
    # benchmark inputs
    "one-output-token-has-no-gap-between-tokens": Case(
        "bench", "sgl-project/sglang pull 9812 (768 requests, 768 tokens, ITL 0.00)",
        bench(output_len=1, total_output_tokens=2048, mean_itl_ms=0.0), 0, ("ITL",), ('"mean_itl_ms": 0.0',),
        bench()),
    "failed-requests-are-mixed-in": Case(
        "bench", "vllm-project/guidellm issue 444; vllm-project/vllm pull 26478",
        bench(completed=1800), 5, ("1800", "2048"), (), bench()),
    "a-warm-prefix-cache": Case(
        "bench", "vllm-project/vllm pull 53920, issue 52884",
        bench(cache_hit_rate=0.4), 5, ("PREFIX_CACHE_WARM", "40.0%", "flush"), (), bench(cache_hit_rate=0.004)),
    "half-of-the-first-tokens-came-at-once": Case(
        "bench", "vllm-project/vllm pull 5895 (median TTFT 0.00 beside a mean of 26 ms)",
        bench(median_ttft_ms=0.0), 0, ("TTFT",), ('"median_ttft_ms": 0.0',), bench(median_ttft_ms=790.0)),
}  # fmt: skip


def shown(outcome: Outcome) -> str:
    body = as_json("case", outcome)
    assert json.loads(body)["exit_code"] == int(outcome.exit_code)
    return body


@pytest.mark.parametrize("name", CASES)
def test_a_case_from_the_field_and_its_healthy_twin(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    (tmp_path / "bad").mkdir()
    (tmp_path / "twin").mkdir()
    bad = case.bad(tmp_path / "bad")
    text = shown(bad)
    assert int(bad.exit_code) == case.exit_code, text
    assert all(word in text for word in case.must), text
    assert not any(word in text for word in case.must_not), text
    twin = case.twin(tmp_path / "twin")
    assert int(twin.exit_code) == case.twin_exit, shown(twin)


def test_every_theme_has_four_cases_and_every_case_names_a_public_thread() -> None:
    themes = [case.theme for case in CASES.values()]
    assert {theme: themes.count(theme) for theme in set(themes)} == dict.fromkeys(
        ("memory", "layout", "flags", "permissions", "model", "logs", "gate", "bench"), 4)  # fmt: skip
    thread = re.compile(r"[\w.-]+/[\w.-]+(?:#| issues? | pull )\d+")
    assert all(thread.search(case.source) for case in CASES.values())
