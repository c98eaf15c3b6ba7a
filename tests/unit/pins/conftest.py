"""Sources as a local git server folder and a local folder of wheels."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from megamoe.pins.model import Pins


def git(*argv: str, cwd: Path) -> str:
    env = os.environ | {f"GIT_{who}_{what}": "test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return subprocess.run(["git", *argv], cwd=cwd, env=env, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Pins, str, Path]:
    """A git base folder with one repository, a wheel in a local folder, and pins that name both."""
    work = tmp_path / "work"
    work.mkdir()
    git("init", "--quiet", cwd=work)
    (work / "file").write_text("one\n")
    git("add", "file", cwd=work)
    git("commit", "--quiet", "-m", "one", cwd=work)
    commit = git("rev-parse", "HEAD", cwd=work)
    base = tmp_path / "served" / "Owner"
    base.mkdir(parents=True)
    git("clone", "--quiet", "--bare", str(work), str(base / "Name.git"), cwd=tmp_path)
    git("config", "uploadpack.allowAnySHA1InWant", "true", cwd=base / "Name.git")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing.py", "x = 1\n")
        archive.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
        archive.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("thing-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    pins = Pins.model_validate(
        {
            "source_date_epoch": 1784716176,
            "base": {
                "name": "a/b:c",
                "digest": "sha256:" + "1" * 64,
                "python": "3.12",
                "torch": "2.10.0",
                "hip": "7.2",
            },
            "git": {"name": {"repository": "Owner/Name", "commit": commit}},
            "wheel": {
                "thing": {
                    "distribution": "thing",
                    "version": "1.0",
                    "sha256": {"py3": hashlib.sha256(wheel.read_bytes()).hexdigest()},
                }
            },
            "python": {},
        }
    )
    return pins, (tmp_path / "served").as_uri(), tmp_path


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The PATH of a machine with git and neither docker nor skopeo; a test adds the clients that it wants."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("git", "sh", "cat", "uname", "mkdir", "sha256sum"):
        (folder / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(folder))
    return folder
