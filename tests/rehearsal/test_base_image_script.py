"""The scripts that make images tidy up below folders of their own; without one they must not touch this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

LIB = Path(__file__).resolve().parents[2] / "scripts/lib/base_image.sh"


@pytest.mark.parametrize("minimal_is_there", [False, True], ids=["first base", "second base of the day"])
def test_without_a_folder_nothing_is_unpacked_removed_or_imported(minimal_is_there: bool, tmp_path: Path) -> None:
    if minimal_is_there:
        (tmp_path / "minimal-bookworm.tar").touch()
    # The call stands left of &&, as its callers' do: bash ignores `set -e` there.
    script = f"""
        source {LIB}
        mktemp() {{ echo "mktemp: No space left on device" >&2; return 1; }}
        note() {{ echo "$1" >>{tmp_path}/called; return 1; }}  # fails, so that a fault of the script ends here
        for tool in debootstrap unshare tar rm docker; do eval "$tool() {{ note $tool; }}"; done
        find() {{ if [[ $1 == *.tar ]]; then command find "$@"; else note find; fi; }}
        (make_base_image tag recipe {tmp_path} python3) && echo went on
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 4
    assert done.stdout == ""
    assert "can be made" in done.stderr and "MEGAMOE_STATE" in done.stderr
    assert not (tmp_path / "called").exists()


def test_without_a_folder_for_the_wheels_the_build_says_so_and_fetches_nothing(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, body in {
        "docker": "exit 0",  # an engine that answers, with a root folder that is not on this machine
        "mktemp": 'echo "mktemp: No space left on device" >&2; exit 1',
        "python3": f"echo called >>{tmp_path}/called; exit 1",
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "MEGAMOE_STATE": str(tmp_path / "state")}
    script = LIB.parents[2] / "docker/build_reference.sh"
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, timeout=30, check=False, env=env)
    assert done.returncode == 4 and done.stdout == ""
    assert "can be made" in done.stderr and "MEGAMOE_STATE" in done.stderr
    assert not (tmp_path / "called").exists()
    assert list((tmp_path / "state").iterdir()) == []
