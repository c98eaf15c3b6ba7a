"""Pins: complete, one copy, fetched once, verified offline. Sources are a local git server folder and a local wheel."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from megamoe.pins import check, sources, verify
from megamoe.pins.model import ClosurePin, Pins, load_pins
from megamoe.resources import resource
from megamoe_atom.problem import Exit, Problem


def make_mirror(served: tuple[Pins, str, Path]) -> Path:
    pins, base, tmp = served
    findings = sources.mirror(pins, tmp, tmp / "mirror", git_base=base, locks=[], say=lambda line: None)
    assert [f.code for f in findings if f.severity == "error"] == []
    return tmp / "mirror"


def test_the_repositorys_own_pins_are_complete_and_stand_in_one_place() -> None:
    pins = load_pins(resource("docker/pins.toml"))
    assert [str(f) for f in check.judge(pins, resource("docker/pins.toml").parents[1])] == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param(('commit = "e3f9', 'commit = "main" # "e3f9'), "pins_floating", id="branch instead of commit"),
        pytest.param(("digest =", "digset ="), "pins_unknown_key", id="misspelt key"),
        pytest.param(("digest =", "# digest ="), "pins_incomplete", id="missing digest"),
        pytest.param(('"3.0.4"', '">=3.0.4"'), "pins_floating", id="range instead of version"),
        pytest.param(("[base]", "[base"), "pins_unreadable", id="not TOML"),
    ],
)
def test_a_wrong_pins_file_is_refused_with_the_key(tmp_path: Path, change: tuple[str, str], code: str) -> None:
    text = resource("docker/pins.toml").read_text()
    assert change[0] in text
    (tmp_path / "pins.toml").write_text(text.replace(*change, 1))
    with pytest.raises(Problem) as caught:
        load_pins(tmp_path / "pins.toml")
    assert code in [reason.code for reason in caught.value.reasons]
    assert caught.value.exit_code is Exit.REFUSED


def test_a_second_copy_of_a_pin_and_another_hash_and_a_floating_reference_are_found(tmp_path: Path) -> None:
    pins = load_pins(resource("docker/pins.toml"))
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "Dockerfile").write_text(
        f"ARG ATOM={pins.git['atom'].commit}\nARG X={'ab' * 20}\nFROM rocm/pytorch:latest\n"
        "# FROM a:latest is a comment\n"
        f"ARG ZERO={'0' * 40}\n"
    )
    found = [(f.code, f.line) for f in check.pins_elsewhere(pins, tmp_path, ["docker/Dockerfile"])]
    assert found == [("pin_second_copy", 1), ("pin_elsewhere", 2), ("pin_floating", 3)]


def test_a_lock_without_hash_or_with_an_address_is_found(tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "a.lock").write_text(
        f"good==1.0 \\\n    --hash=sha256:{'1' * 64}\n    # via x\nbad==1.0\nfloat>=1\n--index-url http://example\n"
    )
    assert [f.code for f in check.lock_findings(tmp_path)] == ["lock_unhashed", "lock_unhashed", "lock_names_host"]


def test_a_mirror_made_once_verifies_offline_and_a_second_run_keeps_it(served: tuple[Pins, str, Path]) -> None:
    mirror = make_mirror(served)
    # Only the base image is absent.
    assert [f.severity for f in verify.verify(served[0], served[2], mirror)] == ["warn"]
    before = {p: p.stat().st_mtime_ns for p in (mirror / "wheels").iterdir()}
    make_mirror(served)
    assert {p: p.stat().st_mtime_ns for p in (mirror / "wheels").iterdir()} == before


@pytest.mark.parametrize("damage", ["truncate", "remove"])
@pytest.mark.parametrize("kind", ["git/*.bundle", "wheels/*.whl"])
def test_a_truncated_or_missing_file_is_named(served: tuple[Pins, str, Path], damage: str, kind: str) -> None:
    mirror = make_mirror(served)
    victim = next(mirror.glob(kind))
    if damage == "truncate":
        victim.write_bytes(victim.read_bytes()[:-10])
    else:
        victim.unlink()
    errors = [f for f in verify.verify(served[0], served[2], mirror) if f.severity == "error"]
    assert [f.code for f in errors] == [{"truncate": "mirror_hash", "remove": "mirror_file_missing"}[damage]]
    assert victim.name in errors[0].what


def test_a_wheel_served_with_other_bytes_is_refused_and_leaves_nothing(served: tuple[Pins, str, Path]) -> None:
    tmp = served[2]
    wheel = sources.WheelSource("wheel.thing", "thing", "1.0", "py3", "2" * 64)
    (tmp / "out").mkdir()
    with pytest.raises(Problem) as caught:
        sources.fetch_wheel(wheel, tmp / "out")
    assert (caught.value.code, caught.value.exit_code) == ("source_hash", Exit.CHECK_FAILED)
    assert list((tmp / "out").iterdir()) == []


def test_a_commit_that_is_gone_is_unreachable_and_leaves_no_bundle(served: tuple[Pins, str, Path]) -> None:
    pins, base, tmp = served
    gone = pins.model_copy(update={"git": {"name": pins.git["name"].model_copy(update={"commit": "3" * 40})}})
    findings = sources.mirror(gone, tmp, tmp / "m", git_base=base, locks=[], say=lambda line: None)
    assert [f.code for f in findings if f.severity == "error"] == ["source_unreachable"]
    assert list((tmp / "m" / "git").iterdir()) == []


def test_a_mirror_of_other_pins_is_refused(served: tuple[Pins, str, Path]) -> None:
    mirror = make_mirror(served)
    manifest = json.loads((mirror / "manifest.json").read_text())
    del manifest["files"]["git/git.name.bundle"]
    (mirror / "manifest.json").write_text(json.dumps(manifest))
    assert "mirror_incomplete" in [f.code for f in verify.verify(served[0], served[2], mirror)]


def test_a_closure_for_another_python_is_asked_for_as_wheels_and_sources_apart() -> None:
    lock = f"# made\nalpha==1.0 \\\n    --hash=sha256:{'1' * 64}\nzmq==0.0.0 \\\n    --hash=sha256:{'2' * 64}\n"
    closure = ClosurePin.model_validate(
        {"python": "3.12", "glibc": "2_39", "as_of": "2026-07-22T12:00:00Z", "source_only": ["zmq"]}
    )
    (wheel_options, wheels), (source_options, source) = sources.closure_requests(lock, closure)
    assert "--only-binary=:all:" in wheel_options and "manylinux_2_39_x86_64" in wheel_options
    assert "manylinux2014_x86_64" in wheel_options  # a wheel that carries only this name is no other's synonym
    assert "alpha" in wheels and "zmq" not in wheels
    assert source_options == ["--no-binary=:all:"] and source.startswith("zmq==0.0.0")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        pytest.param("same", None, id="the locked bytes"),
        pytest.param("other", "source_hash", id="other bytes under the same name"),
        pytest.param("none", "source_unreachable", id="not served"),
    ],
)
def test_a_closure_is_mirrored_whole_or_not_at_all(served: tuple[Pins, str, Path], kind: str, code: str | None) -> None:
    tmp = served[2]
    wheel = next((tmp / "wheels").iterdir())
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest() if kind != "other" else "2" * 64
    (tmp / "requirements").mkdir()
    (tmp / "requirements/one.lock").write_text(f"thing==1.0 \\\n    --hash=sha256:{digest}\n")
    if kind == "none":
        wheel.unlink()
    files: dict[str, dict[str, str]] = {}
    (tmp / "m/closure").mkdir(parents=True)
    found = sources._mirror_closure(tmp, "one", None, tmp / "m", files, lambda line: None)
    assert [f.code for f in found] == ([code] if code else [])
    assert [p.name for p in (tmp / "m/closure/one").iterdir()] == ([] if code else ["thing-1.0-py3-none-any.whl"])
    assert not [p for p in (tmp / "m/closure").iterdir() if p.name.startswith(".")]


def test_debian_packages_of_a_mirror_are_complete_and_unchanged(tmp_path: Path) -> None:
    deb = tmp_path / "a_1.deb"
    deb.write_bytes(b"deb")
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(b'deb').hexdigest()}  a_1.deb\n")
    assert sources._sums_hold(tmp_path)
    (tmp_path / "b_1.deb").write_bytes(b"not listed")
    assert not sources._sums_hold(tmp_path)
    (tmp_path / "b_1.deb").unlink()
    deb.write_bytes(b"de")
    assert not sources._sums_hold(tmp_path)


def test_packages_that_the_base_lacks_are_refused_without_their_sums(tmp_path: Path) -> None:
    script = resource("docker/pins.toml").parent / "rocm/install_apt.sh"
    done = subprocess.run(["bash", str(script), str(tmp_path)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "SHA256SUMS is missing" in done.stderr and "megamoe pins mirror" in done.stderr
    (tmp_path / "SHA256SUMS").write_text(f"{'1' * 64}  a_1.deb\n")
    (tmp_path / "a_1.deb").write_bytes(b"truncated")
    done = subprocess.run(["bash", str(script), str(tmp_path)], capture_output=True, text=True, timeout=30)
    assert done.returncode != 0 and "a_1.deb" in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("lock", "said"),
    [
        pytest.param("thing==1.0 --hash=sha256:{digest}", None, id="the lock it was made for"),
        pytest.param("thing==1.1 --hash=sha256:{other}", "none for thing==1.1", id="another version"),
        pytest.param("thing==1.0 --hash=sha256:{digest}\nb==2 --hash=sha256:{other}", "for b==2", id="a line more"),
        pytest.param("# nothing", "1 files for 0 requirements", id="a line less"),
    ],
)
def test_a_mirror_of_another_lock_is_refused(served: tuple[Pins, str, Path], lock: str, said: str | None) -> None:
    pins, base, tmp = served
    wheel = hashlib.sha256(next((tmp / "wheels").iterdir()).read_bytes()).hexdigest()
    (tmp / "requirements").mkdir()
    locked = tmp / "requirements/one.lock"
    locked.write_text(f"thing==1.0 --hash=sha256:{wheel}\n")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    closure = ClosurePin.model_validate({"python": version, "glibc": "2_39", "as_of": "2026-07-22T12:00:00Z"})
    pins = pins.model_copy(update={"closure": {"one": closure}})
    sources.mirror(pins, tmp, tmp / "m", git_base=base, locks=[], say=lambda _line: None)
    locked.write_text(lock.format(digest=wheel, other="5" * 64) + "\n")
    found = [f for f in verify.verify(pins, tmp, tmp / "m") if f.severity == "error"]
    assert [f.code for f in found] == ([] if said is None else ["mirror_other_pin"])
    assert said is None or said in found[0].what
