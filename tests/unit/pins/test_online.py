"""Is each source still served as pinned? Asked of a git folder, a folder of wheels, and clients that answer as told."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from megamoe.pins import online
from megamoe.pins.command import app
from megamoe.pins.model import AptPin, Pins
from typer.testing import CliRunner

Served = tuple[Pins, str, Path]
BASE = b'{"schemaVersion": 2}'


def client(folder: Path, name: str, script: str) -> None:
    """A program of that name, alone on the PATH but for what the shell needs."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def answers(served: Served, **change: object) -> dict[str, tuple[str, str]]:
    """pin -> (status, code of its finding)."""
    pins, base, tmp = served
    (tmp / "requirements").mkdir(exist_ok=True)
    said: list[str] = []
    found = online.ask(pins.model_copy(update=change), tmp, git_base=base, say=said.append)
    assert [line.split()[0] for line in said] == [a.status for a in found]
    for answer in found:
        assert bool(answer.findings) is (answer.status != "pass") and answer.about
        assert all(f.what and f.why and f.fix for f in answer.findings)
    return {a.pin: (a.status, a.findings[0].code if a.findings else "") for a in found}


def lock(served: Served, *hashes: str, version: str = "1.0") -> None:
    (served[2] / "requirements").mkdir(exist_ok=True)
    lines = [f"thing=={version}", *(f"--hash=sha256:{h}" for h in hashes)]
    (served[2] / "requirements/one.lock").write_text("# made by x\n" + " \\\n    ".join(lines) + "\n    # via y\n")


def locked(served: Served) -> str:
    return hashlib.sha256((served[2] / "wheels/thing-1.0-py3-none-any.whl").read_bytes()).hexdigest()


def test_what_is_served_as_pinned_passes(served: Served, clients: Path) -> None:
    lock(served, "1" * 64, locked(served))
    found = answers(served)
    assert {p: s for p, (s, _) in found.items() if p != "base"} == {
        "git.name": "pass", "wheel.thing.py3": "pass", "lock.one": "pass",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("hashes", "version", "code"),
    [
        pytest.param(["2" * 64], "1.0", "source_hash", id="other bytes under the same name"),
        pytest.param(["2" * 64], "1.1", "source_unreachable", id="a version that is gone"),
    ],
)
def test_a_lock_that_is_not_served_as_locked_is_named(
    served: Served, clients: Path, hashes: list[str], version: str, code: str
) -> None:
    lock(served, *hashes, version=version)
    assert answers(served)["lock.one"] == ("fail", code)


def test_a_newer_build_of_a_locked_version_does_not_hide_the_locked_one(
    served: Served, clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = locked(served)
    lock(served, digest)
    index = served[2] / "simple/thing"
    index.mkdir(parents=True)
    links = []
    for name, more in (("thing-1.0-py3-none-any.whl", b""), ("thing-1.0-2-py3-none-any.whl", b"newer")):
        data = (served[2] / "wheels/thing-1.0-py3-none-any.whl").read_bytes() + more
        (index / name).write_bytes(data)
        links.append(f'<a href="{name}#sha256={hashlib.sha256(data).hexdigest()}">{name}</a>')
    (index / "index.html").write_text("\n".join(["<!DOCTYPE html><html><body>", *links, "</body></html>"]))
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", index.parent.as_uri())
    # A build number is preferred to none: without hashes pip would take the newer one.
    asked, _ = online._served([], f"thing==1.0 --hash=sha256:{digest}", served[2])
    assert asked["thing"] != digest
    assert answers(served)["lock.one"] == ("pass", "")


def test_commits_and_wheels_that_are_gone_are_named(served: Served, clients: Path) -> None:
    pins = served[0]
    gone = {"name": pins.git["name"].model_copy(update={"commit": "3" * 40})}
    other = {"thing": pins.wheel["thing"].model_copy(update={"sha256": {"py3": "4" * 64}})}
    found = answers(served, git=gone, wheel=other)
    assert found["git.name"] == ("fail", "source_unreachable")
    assert found["wheel.thing.py3"] == ("fail", "source_hash")


def test_what_nothing_here_can_ask_for_is_not_run(served: Served, clients: Path) -> None:
    apt = AptPin(snapshot="20260722T000000Z", packages=["tini"])
    found = answers(served, apt=apt)
    assert found["apt"] == found["base"] == ("not_run", "source_not_asked")
    client(clients, "docker", "echo no such image >&2; exit 1")  # installed, without the base and without buildx
    found = answers(served, apt=apt)
    assert found["apt"] == found["base"] == ("not_run", "source_not_asked")


@pytest.mark.parametrize(
    ("script", "result"),
    [
        pytest.param("printf '%s' '{\"schemaVersion\": 2}'", ("pass", ""), id="its bytes have the digest"),
        pytest.param("echo other", ("fail", "source_hash"), id="other bytes"),
        pytest.param("echo 'no route to host' >&2; exit 1", ("fail", "source_unreachable"), id="no registry"),
    ],
)
@pytest.mark.parametrize("name", ["skopeo", "docker"])
def test_the_base_is_asked_of_its_registry(
    served: Served, clients: Path, name: str, script: str, result: tuple[str, str]
) -> None:
    digest = f"sha256:{hashlib.sha256(BASE).hexdigest()}"
    wanted = f"a/b@{digest}"
    asked = {"skopeo": f"inspect --raw docker://{wanted}", "docker": f"buildx imagetools inspect --raw {wanted}"}[name]
    client(clients, name, f'[ "$*" = "buildx version" ] && exit 0\n[ "$*" = "{asked}" ] || exit 9\n{script}')
    assert answers(served, base=served[0].base.model_copy(update={"digest": digest}))["base"] == result


@pytest.mark.parametrize(
    ("script", "result"),
    [
        pytest.param("echo \"'http://a/tini_1.deb' tini_1.deb 9 MD5Sum:00\"", ("pass", ""), id="named"),
        pytest.param("echo 'E: Unable to locate package' >&2; exit 100", ("fail", "source_unreachable"), id="gone"),
        pytest.param("exit 0", ("fail", "source_unreachable"), id="nothing to download"),
    ],
)
def test_the_bases_own_apt_is_asked_for_the_pinned_day(
    served: Served, clients: Path, script: str, result: tuple[str, str]
) -> None:
    asked = "/fetch_apt.sh --only-ask 20260722T000000Z tini"
    client(clients, "docker", f'case "$*" in "image inspect "*) ;; *"{asked}") {script} ;; *) exit 9 ;; esac')
    assert answers(served, apt=AptPin(snapshot="20260722T000000Z", packages=["tini"]))["apt"] == result


@pytest.mark.parametrize(
    ("given", "status", "exit_code"),
    [
        pytest.param(["pass", "pass"], "pass", 0, id="all are served"),
        pytest.param(["pass", "not_run"], "not_run", 5, id="one could not be asked"),
        pytest.param(["not_run", "source_unreachable"], "error", 3, id="one is not served"),
        pytest.param(["source_hash", "source_unreachable"], "fail", 1, id="one has other bytes"),
    ],
)
def test_the_verdict_of_the_command(
    monkeypatch: pytest.MonkeyPatch, given: list[str], status: str, exit_code: int
) -> None:
    made = {"pass": online.Answer("p", "pass", "x"), "not_run": online._silent("s", "x", "y")}
    listed = [made.get(word) or online._bad("b", word, "x", "y", "z") for word in given]
    monkeypatch.setattr(online, "ask", lambda *_a, **_k: listed)
    done = CliRunner().invoke(app, ["check", "--online", "--json"])
    body = json.loads(done.stdout)
    assert (body["status"], done.exit_code) == (status, exit_code)
    assert [row["status"] for row in body["data"]["sources"]] == [a.status for a in listed]
