"""The compose file that `plan` prints is one by the compose specification, and means what the plan means."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from plan_support import plan

VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "podman": {"container__engine": "podman"},
    "private": {"container__ipc": "private", "container__shm_size": "64g", "container__user": "10001:10001"},
    "bridge": {"container__network_mode": "bridge", "container__ports": ["8000:8000"]},
    "rights": {
        "container__privileged": True, "container__cap_drop": ["CHOWN"], "container__read_only": True,
        "container__tmpfs": ["/scratch:size=64m"], "container__ulimits": {"nofile": {"soft": 512, "hard": 1024}},
    },
    "text": {"env__NOTE": "a $HOME ${X:?y} 'q' \"r\" #s: t", "container__group_add": ["44", "109"]},
}  # fmt: skip


def composed(**changes: Any) -> str:
    outcome = plan(**changes)
    assert outcome.exit_code == 0, [f.what for f in outcome.findings]
    return str(outcome.data["compose"])


def test_every_variant_holds_the_compose_specification_and_a_misspelt_key_does_not(tmp_path: Path) -> None:
    for name, changes in VARIANTS.items():
        (tmp_path / f"{name}.yml").write_text(composed(**changes))
    tool = Path(sys.executable).parent / "check-jsonschema"
    argv = [str(tool), "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*argv, *tmp_path.glob("*.yml")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "wrong.yml").write_text(composed().replace("stop_grace_period:", "stop_grace:"))
    assert subprocess.run([*argv, tmp_path / "wrong.yml"], capture_output=True, timeout=120).returncode != 0


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_compose_itself_reads_the_values_that_the_plan_gave(tmp_path: Path) -> None:
    changes = VARIANTS["text"]
    (tmp_path / "c.yml").write_text(composed(**changes))
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "X": "1"}
    argv = ["docker-compose", "-f", str(tmp_path / "c.yml"), "config"]  # asks no engine
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    service = yaml.safe_load(done.stdout.replace("$$", "$"))["services"]["moe"]
    assert service["environment"]["NOTE"] == changes["env__NOTE"]
    assert [str(g) for g in service["group_add"]] == ["44", "109"]
    assert service["command"] == plan(**changes).data["container"]["command"]
