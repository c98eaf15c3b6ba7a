"""What `serve` refuses in the rocm image, before any weight is read: each refusal with its code and its exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from launch_support import ENV, codes
from megamoe.image import arguments, facts, kernels, launch
from megamoe.version import identity
from megamoe_atom.problem import Exit, Problem


def test_the_validated_launch_is_legal(box: SimpleNamespace) -> None:
    assert codes(box) == []


def test_another_architecture_is_refused(box: SimpleNamespace) -> None:
    for path in box.root.glob("sys/class/kfd/kfd/topology/nodes/[1-8]/properties"):
        path.write_text("simd_count 1216\ngfx_target_version 90402\n")
    assert "arch" in codes(box)


def test_a_mix_of_architectures_is_refused(box: SimpleNamespace) -> None:
    (box.root / "sys/class/kfd/kfd/topology/nodes/3/properties").write_text("simd_count 9\ngfx_target_version 90402\n")
    assert "arch" in codes(box)


def test_a_container_without_any_gpu_is_refused(box: SimpleNamespace) -> None:
    for path in box.root.glob("sys/class/kfd/kfd/topology/nodes/[1-8]/properties"):
        path.write_text("simd_count 0\n")
    assert "gpu_none" in codes(box)


def test_a_missing_gpu_is_refused(box: SimpleNamespace) -> None:
    (box.root / "sys/class/kfd/kfd/topology/nodes/5/properties").write_text("simd_count 0\n")
    assert "too_few_gpus" in codes(box)


@pytest.mark.parametrize("gone", ["kfd", "dri"])
def test_a_device_that_was_not_passed_is_refused(box: SimpleNamespace, gone: str) -> None:
    for path in sorted((box.root / "dev").rglob(f"*{gone}*" if gone == "kfd" else "renderD*")):
        path.unlink()
    assert "device_missing" in codes(box)


@pytest.mark.parametrize(
    ("error", "code", "fix"),
    [
        ("EACCES", "device_group", "--group-add 109"),
        ("EPERM", "device_group", "--device"),
        ("EIO", "device_error", "log"),
    ],
)
def test_a_device_that_cannot_be_opened_names_the_groups_number(error: str, code: str, fix: str) -> None:
    given = facts.Facts(
        gpus=(),
        devices=(facts.Device("/dev/dri/renderD128", 109, error),),
        groups=(44, 10001),
        uid=10001,
        shm_bytes=None,
    )
    found = [f for f in launch.judge_container(given, mega=True, env={}) if f.code == code]
    assert len(found) == 1 and fix in found[0].fix
    if code == "device_group":
        assert "109" in found[0].what and "44, 10001" in found[0].what


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become a user without the group")
def test_a_process_without_the_devices_group_is_refused_for_real(tmp_path: Path) -> None:
    node = tmp_path / "kfd"
    node.touch()
    os.chown(node, 0, 4711)
    node.chmod(0o660)
    for path in (tmp_path, *tmp_path.parents):
        if path != Path("/") and path.stat().st_mode & 0o005 != 0o005:
            path.chmod(path.stat().st_mode | 0o055)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:  # becomes the image's user; the test's own interpreter is root's
        os.setgroups([44])
        os.setgid(10001)
        os.setuid(10001)
        os.write(writer, str(facts.device(node)).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert b"group=4711, error='EACCES'" in os.read(reader, 4096)
    os.close(reader)


@pytest.mark.parametrize("name", ["MEGAMOE_STATUS_DIR", "FLYDSL_RUNTIME_CACHE_DIR", "MORI_JIT_CACHE_DIR", "HOME"])
def test_a_place_that_cannot_be_written_is_refused(box: SimpleNamespace, name: str) -> None:
    (box.root / "file").write_text("")
    box.env[name] = str(box.root / "file/below")
    outcome = launch.outcome(box.flags, box.env, box.root)
    assert [f.what.split("=")[0] for f in outcome.findings if f.code == "not_writable"] == [name]
    assert outcome.exit_code is Exit.REFUSED


def test_every_cache_that_the_image_names_is_asked_whether_it_can_be_written() -> None:
    dockerfile = (Path(__file__).resolve().parents[2] / "docker/Dockerfile").read_text()
    served = dockerfile[dockerfile.index("FROM rocm-stack AS rocm\n") :]
    named = set(re.findall(r"(\w+)=/(?:var/cache|run)/megamoe", served))
    # One directory with all of these: two of them stand for XDG's and torch inductor's.
    assert named - {"XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR"} == set(facts._CONTAINER_PATHS)


def test_a_small_shared_memory_is_refused() -> None:
    given = facts.Facts(gpus=(), devices=(), groups=(), uid=0, shm_bytes=64 << 20)
    assert "shm_small" in [f.code for f in launch.judge_container(given, mega=True, env={})]


@pytest.mark.parametrize("damage", ["directory", "config", "shards", "flag"])
def test_a_checkpoint_that_is_not_there_is_refused(box: SimpleNamespace, damage: str) -> None:
    if damage == "directory":
        box.flags[1] = "deepseek-ai/DeepSeek-V4-Pro"  # a hub name: nothing is fetched in a service
    elif damage == "config":
        (box.model / "config.json").unlink()
    elif damage == "shards":
        next(box.model.glob("*.safetensors")).unlink()
    else:
        del box.flags[:2]
    assert codes(box) == ["model_not_given" if damage == "flag" else "model_missing"]


def test_an_image_built_on_a_stand_in_is_refused(box: SimpleNamespace) -> None:
    (box.root / "opt/megamoe/not_run").mkdir(parents=True)
    (box.root / "opt/megamoe/not_run/aiter-kernels").write_text("hipcc missing\n")
    assert codes(box) == ["stand_in_image"]


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        pytest.param("edit", "file_drift", id="a file was edited"),
        pytest.param("remove", "file_drift", id="a file is gone"),
        pytest.param("upgrade", "package_drift", id="a package was replaced"),
        pytest.param("install", "package_added", id="a package was added"),
        pytest.param("truncate", "stack_lock_unreadable", id="the lock is damaged"),
        pytest.param("forget", "stack_lock_unreadable", id="the lock is gone"),
    ],
)
def test_an_image_that_was_changed_is_refused_with_exit_1(box: SimpleNamespace, damage: str, code: str) -> None:
    lock = json.loads(box.lock.read_text())
    match damage:
        case "edit":
            (box.root / "kernel.py").write_text("x = 2\n")
        case "remove":
            (box.root / "kernel.py").unlink()
        case "upgrade":
            lock["distributions"]["torch"] = "0.1"
        case "install":
            del lock["distributions"]["torch"]
    box.lock.write_text(json.dumps(lock) if damage != "truncate" else json.dumps(lock)[:-9])
    if damage == "forget":
        box.lock.unlink()
    assert codes(box) == [code]
    assert launch.outcome(box.flags, box.env, box.root).exit_code is Exit.CHECK_FAILED


@pytest.mark.parametrize("bitcode", [None, "ab" * 32])
def test_linked_kernels_from_the_cache_are_said_at_every_start(box: SimpleNamespace, bitcode: str | None) -> None:
    (box.root / "opt/megamoe/kernels").mkdir()
    needs = {"arch": "gfx950"} | ({"bitcode": bitcode} if bitcode else {})
    (box.root / "opt/megamoe/kernels/aot.json").write_text(json.dumps({"depends_on": needs}))
    outcome = launch.outcome(box.flags, box.env, box.root)
    assert outcome.exit_code is Exit.PASS
    said = [f for f in outcome.findings if f.code == "kernels_linked_unverified"]
    assert len(said) == (1 if bitcode else 0) and all("unverified on a GPU" in f.why for f in said)


def test_a_changed_image_does_not_hide_what_else_is_wrong(box: SimpleNamespace) -> None:
    box.lock.unlink()
    box.env["COMPILE_ONLY"] = "1"
    assert set(codes(box)) == {"env_forbidden", "stack_lock_unreadable"}
    assert launch.outcome(box.flags, box.env, box.root).exit_code is Exit.REFUSED


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become a user who cannot read the file")
def test_a_file_that_the_serving_user_cannot_read_is_refused_for_real(box: SimpleNamespace) -> None:
    (box.root / "kernel.py").chmod(0o600)
    for path in (box.root, *box.root.parents):
        if path != Path("/") and path.stat().st_mode & 0o005 != 0o005:
            path.chmod(path.stat().st_mode | 0o055)
    lock = json.loads(box.lock.read_text())
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.setgid(10001)
        os.setuid(10001)
        os.write(writer, ",".join(f.code for f in identity.drift(lock)).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 4096) == b"file_unreadable"
    os.close(reader)
    assert "file_unreadable" in launch._CHANGED


def test_an_unknown_profile_is_refused(box: SimpleNamespace) -> None:
    box.env["MEGAMOE_PROFILE"] = "deepseek-v4-por"
    outcome = launch.outcome(box.flags, box.env, box.root)
    assert (outcome.exit_code, outcome.findings[0].code) == (Exit.REFUSED, "profile_unknown")
    assert "deepseek-v4-pro" in outcome.findings[0].fix


@pytest.mark.parametrize(
    ("shape", "name"), [((7168, 3072, 384, 6), "deepseek-v4-pro"), ((4096, 2048, 256, 6), "deepseek-v4-flash")]
)
def test_the_profile_is_found_by_shape(box: SimpleNamespace, shape: tuple[int, ...], name: str) -> None:
    (box.model / "config.json").write_text(json.dumps(dict(zip(launch._SHAPE, shape, strict=True))))
    assert launch.profile_of(str(box.model), {}).name == name


def test_a_model_of_another_shape_is_refused(box: SimpleNamespace) -> None:
    (box.model / "config.json").write_text(json.dumps(dict(zip(launch._SHAPE, (7168, 2048, 256, 8), strict=True))))
    outcome = launch.outcome(box.flags, box.env, box.root)
    assert (outcome.exit_code, outcome.findings[0].code) == (Exit.REFUSED, "profile_not_found")
    assert "n_routed_experts 256" in outcome.findings[0].what


def test_every_flag_that_the_plan_renders_is_read_back() -> None:
    from megamoe.deploy.schema import Deploy
    from megamoe.plan.effective import flags_of

    args = {
        "tensor_parallel": 8, "enable_dp_attention": True, "enable_expert_parallel": True, "enforce_eager": True,
        "max_num_batched_tokens": 8192, "max_num_seqs": 256, "max_model_len": 9472, "kv_cache_dtype": "fp8",
        "index_cache_dtype": "bf16", "gpu_memory_utilization": 0.85, "cudagraph_mode": "FULL", "level": 3,
        "cudagraph_capture_sizes": [1, 2], "block_size": 128, "enable_prefix_caching": False, "method": "mtp",
        "num_speculative_tokens": 3, "enable_chunked_prefill": True, "dp_load_balance": "round_robin",
        "all2all_backend": "high-throughput", "eplb_config": {"num_redundant_experts": 0}, "trust_remote_code": True,
        "hf_overrides": {"index_topk_freq": 4}, "load_dummy": "zero", "enable_tbo": "all", "eplb_enable": True,
        "long_prefill_token_threshold": 0, "attn_prefill_chunk_size": 64, "draft_model": "/d", "data_parallel": 2,
        "prefill_context_parallel": 2, "online_quant_config": {"a": 1}, "port": 8001, "internal_port": 8007,
        "host": "::",
    }  # fmt: skip
    deploy = Deploy.model_validate(
        {
            "engine": "atom",
            "image": "x",
            "model": {"path": "/m", "profile": "p", "weights": "mxfp4"},
            "gpu": {"arch": "gfx950", "count": 8, "vram_gib": 288},
            "args": args,
        }
    )
    assert set(args) | {"moe_backend"} == set(type(deploy.args).model_fields)
    found = arguments.read(flags_of(deploy), {})
    assert found.model == "/m"
    assert found.args == args
    assert found.passed_on == []


def test_a_flag_that_no_rule_knows_is_passed_on_and_said(box: SimpleNamespace) -> None:
    box.flags += ["--mark-trace"]
    outcome = launch.outcome(box.flags, box.env, box.root)
    assert outcome.exit_code is Exit.PASS
    assert any(f.code == "flag_not_judged" and "--mark-trace" in f.what for f in outcome.findings)


def test_the_engine_gets_the_flags_as_given_and_the_health_checks_port() -> None:
    env = ENV | {"MEGAMOE_PORT": "8123"}
    assert launch.command(["--model", "/m"], env)[1:] == [
        "-m", "atom.entrypoints.openai_server", "--model", "/m", "--server-port", "8123",
    ]  # fmt: skip
    assert launch.command(["--server-port=9"], env)[-1] == "--server-port=9"


def test_kernels_made_ahead_of_time_are_put_where_the_engine_may_also_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baked, site = tmp_path / "kernels", tmp_path / "site"
    code = tmp_path / "mori/jit/gfx950_mlx5_cov6/0123"
    code.mkdir(parents=True)
    (code / "libmori_shmem_device.bc").write_bytes(b"BC")
    (code.parent / "latest").mkdir()
    (code.parent / "latest/a.hsaco").symlink_to("../0123/libmori_shmem_device.bc")
    (baked / "abc/launch_1").mkdir(parents=True)
    (baked / "abc/launch_1/k.pkl").write_bytes(b"k")
    (baked / "aot.json").write_text(json.dumps({"cache": "abc"}))
    (site / "aiter/jit/flydsl_cache/other_2").mkdir(parents=True)
    (site / "aiter/__init__.py").write_text("")
    (site / "aiter/jit/module_x.so").write_text("")
    (site / "aiter/jit/flydsl_cache/other_2/a.pkl").write_bytes(b"a")
    monkeypatch.syspath_prepend(str(site))
    env = {
        "FLYDSL_RUNTIME_CACHE_DIR": str(tmp_path / "run/flydsl"),
        "MEGAMOE_KERNELS": str(baked),
        "AITER_JIT_DIR": str(tmp_path / "run/aiter"),
        "MORI_JIT_CACHE_DIR": str(tmp_path / "run/mori"),
    }
    for _ in range(2):  # a restarted container finds its places filled
        assert launch.seed_caches(env) == 1
    assert (tmp_path / "run/flydsl/launch_1/k.pkl").read_bytes() == b"k"
    assert (tmp_path / "run/flydsl/other_2/a.pkl").exists()
    assert (tmp_path / "run/mori/gfx950_mlx5_cov6/0123/libmori_shmem_device.bc").read_bytes() == b"BC"
    latest = tmp_path / "run/mori/gfx950_mlx5_cov6/latest/a.hsaco"
    assert latest.is_symlink() and latest.resolve().is_relative_to(tmp_path / "run")  # not the read-only original
    assert (tmp_path / "run/aiter/module_x.so").resolve() == site / "aiter/jit/module_x.so"


def test_kernels_compiled_after_the_start_are_counted(tmp_path: Path) -> None:
    (tmp_path / "kernels/abc/launch_1").mkdir(parents=True)
    (tmp_path / "kernels/abc/launch_1/k.pkl").write_bytes(b"k")
    (tmp_path / "kernels/aot.json").write_text(json.dumps({"cache": "abc", "kernels": 1}))
    env = {"FLYDSL_RUNTIME_CACHE_DIR": str(tmp_path / "cache"), "MEGAMOE_KERNELS": str(tmp_path / "kernels")}
    assert kernels.counts({}) is None
    launch.seed_caches(env)
    found = kernels.counts(env)
    assert found == {"ahead_of_time": 1, "lost": 0, "compiled_since": 0}
    assert kernels.findings(found) == []
    (tmp_path / "cache/launch_1/new.pkl").write_bytes(b"n")
    (tmp_path / "cache/launch_1/k.pkl").unlink()
    found = kernels.counts(env)
    assert found == {"ahead_of_time": 1, "lost": 1, "compiled_since": 1}
    assert [f.code for f in kernels.findings(found)] == ["kernels_compiled_here"]


@pytest.mark.parametrize(
    ("version", "name"), [(90500, "gfx950"), (90402, "gfx942"), (90010, "gfx90a"), (120001, "gfx1201")]
)
def test_the_drivers_number_is_read_as_the_gfx_name(version: int, name: str) -> None:
    assert facts.gfx_name(version) == name


def test_a_refusal_is_one_exit_code_and_the_engine_is_never_started(box: SimpleNamespace) -> None:
    env = {**os.environ, **box.env, "COMPILE_ONLY": "1", "MEGAMOE_ENGINE_MODULE": "no_such_engine"}
    done = subprocess.run(
        [sys.executable, "-m", "megamoe.image.launch", *box.flags], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == int(Exit.REFUSED)
    assert "env_forbidden" in done.stderr and "no_such_engine" not in done.stderr and "Traceback" not in done.stderr


def test_a_legal_launch_becomes_the_engine_so_that_sigterm_reaches_it(box: SimpleNamespace) -> None:
    (box.root / "site").mkdir()
    (box.root / "site/engine_of_the_test.py").write_text(
        "import os, sys, time\nprint(os.getpid(), *sys.argv[1:], flush=True)\ntime.sleep(60)\n"
    )
    (box.root / "baked/key").mkdir(parents=True)
    (box.root / "baked/aot.json").write_text('{"cache": "key"}')
    env = {
        **os.environ,
        **box.env,
        "PYTHONPATH": str(box.root / "site"),
        "MEGAMOE_ENGINE_MODULE": "engine_of_the_test",
        "MEGAMOE_KERNELS": str(box.root / "baked"),
    }
    code = (
        "import pathlib, sys; from megamoe.image import launch; real = launch.outcome; "
        f"launch.outcome = lambda a, e: real(a, e, pathlib.Path({str(box.root)!r})); launch.main(sys.argv[1:])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *box.flags], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline().split()
        assert said == [str(process.pid), *box.flags, "--server-port", "8000"]
        process.terminate()
        assert process.wait(timeout=30) == -15


def test_reading_a_broken_flag_is_a_problem_with_its_value() -> None:
    with pytest.raises(Problem, match="eight"):
        arguments.read(["-tp", "eight"], {})
