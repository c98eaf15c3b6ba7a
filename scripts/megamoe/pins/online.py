"""`megamoe pins check --online`: whether each source is still served, with the pinned hash.

Commits are asked of their git server. The pinned wheels are downloaded, which proves their bytes. For each lock the
package index is asked through pip which file it would give and with which sha256: nothing is downloaded but where that
hash is not a locked one. The Debian packages are asked for inside the base, by apt, as of the pinned day; the base is
asked of its registry. A source that no client here can ask for is `not_run`, which is not `pass`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from megamoe_atom.problem import Problem

from megamoe.envelope import Finding
from megamoe.pins import sources
from megamoe.pins.model import ClosurePin, Pins


@dataclass(frozen=True, slots=True)
class Answer:
    """What one source's server said. about: what was asked and how, for the evidence."""

    pin: str
    status: Literal["pass", "fail", "not_run"]
    about: str
    findings: tuple[Finding, ...] = ()


def _bad(pin: str, code: str, what: str, why: str, fix: str) -> Answer:
    return Answer(pin, "fail", what, (Finding(code, "error", f"{pin}: {what}", why, fix),))


def _silent(pin: str, what: str, fix: str) -> Answer:
    why = "nothing here can ask for it, so whether it is still served is not known"
    return Answer(pin, "not_run", what, (Finding("source_not_asked", "warn", f"{pin}: {what}", why, fix),))


def _gone(pin: str, what: str) -> Answer:
    return _bad(
        pin, "source_unreachable", what, "it may be gone, or there is no network",
        "check the network; if it is gone, build from a mirror",
    )  # fmt: skip


def ask(pins: Pins, root: Path, *, git_base: str, say: sources.Say) -> list[Answer]:
    """One answer per pinned commit, wheel and lock, and for the Debian packages and the base."""
    answers: list[Answer] = []

    def keep(what: str, given: Iterator[Answer] | Answer) -> None:
        for answer in [given] if isinstance(given, Answer) else given:
            say(f"{answer.status:8} {what}")
            answers.append(answer)

    with tempfile.TemporaryDirectory() as folder:
        for source in sources.git_sources(pins):
            keep(f"{source.repository} {source.commit[:12]}", _commit(source, Path(folder), git_base))
        for wheel in sources.wheel_sources(pins):
            keep(f"{wheel.distribution} {wheel.version} {wheel.python_tag}", _wheel(wheel, Path(folder)))
        for lock in sorted((root / "requirements").glob("*.lock")):
            keep(lock.name, _lock(lock, pins.closure.get(lock.stem), Path(folder)))
    if pins.apt is not None:
        keep(f"apt {pins.apt.snapshot}", _apt(pins, root))
    keep(f"base {pins.base.digest[:19]}", _base(pins))
    return answers


def _commit(source: sources.GitSource, folder: Path, git_base: str) -> Answer:
    bare = str(folder / source.bundle.replace("/", "-"))
    address = f"{git_base.rstrip('/')}/{source.repository}.git"
    sources.run(["git", "init", "--quiet", "--bare", bare])
    got = sources.run(
        ["git", "-C", bare, "fetch", "--quiet", "--depth=1", "--filter=tree:0", address, source.commit], timeout=600
    )
    if got.returncode:
        return _gone(source.pin, f"commit {source.commit} is not served: {sources.last_line(got.stderr)}")
    return Answer(source.pin, "pass", f"commit {source.commit} fetched, without its files")


def _wheel(wheel: sources.WheelSource, folder: Path) -> Answer:
    try:
        sources.fetch_wheel(wheel, folder).unlink()
    except Problem as problem:
        found = tuple(Finding.from_reason(reason) for reason in problem.reasons)
        return Answer(wheel.pin, "fail", problem.reasons[0].what, found)
    return Answer(wheel.pin, "pass", f"downloaded, sha256 {wheel.sha256}")


# ---- locks


def _lock(lock: Path, closure: ClosurePin | None, folder: Path) -> Answer:
    """Every line of one lock: the index serves a file for it, and that file's hash is a locked one."""
    pin = f"lock.{lock.stem}"
    text = lock.read_text(encoding="utf-8")
    asked = downloaded = 0
    for options, lines in sources.closure_requests(text, closure):
        if "--no-binary=:all:" in options:  # few and small; pip would build an sdist's metadata even for a dry run
            wanted = [line for line in lines.splitlines() if line.strip()]
        else:
            served, failure = _served(options, lines, folder)
            if failure:
                return _gone(pin, failure)
            wanted = [
                line
                for line in sources.requirements(lines)
                if served.get(_name(line)) not in sources.HASH.findall(line)
            ]
            asked += len(sources.requirements(lines))
        for line in wanted:
            if answer := _download(pin, options, line, folder):
                return answer
        downloaded += len(wanted)
    target = f"Python {closure.python}, glibc {closure.glibc}" if closure else "this Python"
    return Answer(
        pin, "pass", f"{asked} files named by the index with a locked hash, {downloaded} downloaded ({target})"
    )


def _name(line: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[=\[; ]", line, maxsplit=1)[0]).lower()


def _served(options: list[str], lines: str, folder: Path) -> tuple[dict[str, str], str]:
    """Normalised name -> sha256 of the file that the index would give; else pip's last word.

    Hashes are left out of what is asked, since pip downloads every file that it is to check.
    """
    with tempfile.TemporaryDirectory(dir=folder) as work:
        wanted, report = Path(work) / "requirements.txt", Path(work) / "report.json"
        wanted.write_text("\n".join(sources.HASH.sub("", line) for line in sources.requirements(lines)) + "\n")
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
        argv += ["--target", f"{work}/nothing", *(options or ["--only-binary=:all:"])]
        got = sources.run([*argv, "--report", str(report), "-r", str(wanted)])
        if got.returncode:
            return {}, _said(got)
        return {
            _name(item["metadata"]["name"]): _sha256(item["download_info"])
            for item in json.loads(report.read_text(encoding="utf-8"))["install"]
        }, ""


def _sha256(info: dict[str, object]) -> str:
    """The hash that the index states; of a file in a local folder, whose index states none, the file's own."""
    archive, url = info.get("archive_info"), urlsplit(str(info.get("url")))
    stated = archive.get("hashes", {}).get("sha256") if isinstance(archive, dict) else None
    if stated is None and url.scheme == "file":
        return sources.sha256_of(Path(unquote(url.path)))
    return str(stated)


def _download(pin: str, options: list[str], line: str, folder: Path) -> Answer | None:
    """None when pip gets a file with a locked hash. Another file of the same version may be the newer build."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        wanted = Path(work) / "requirements.txt"
        wanted.write_text(line + "\n")
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps", *options]
        got = sources.run([*argv, "-r", str(wanted), "-d", work])
    if not got.returncode:
        return None
    name = line.split(" ", 1)[0]
    if "DO NOT MATCH THE HASHES" in got.stderr:
        return _bad(
            pin, "source_hash", f"{name} is served with none of its {len(sources.HASH.findall(line))} locked hashes",
            "only the locked bytes were checked", "do not change the lock: find out who replaced the file",
        )  # fmt: skip
    return _gone(pin, f"{name} cannot be downloaded: {_said(got)}")


def _said(got: subprocess.CompletedProcess[str]) -> str:
    """pip's own error, not a warning that stands behind it."""
    errors = [line for line in got.stderr.splitlines() if line.startswith("ERROR:")]
    return sources.last_line("\n".join(errors) or got.stderr)


# ---- Debian packages, base


def _apt(pins: Pins, root: Path) -> Answer:
    """Only the base knows what it lacks: its own apt names the files, and checks the archive's signature."""
    assert pins.apt is not None
    client, base = shutil.which("docker"), pins.base.reference
    if client is None:
        what = "no docker is installed, and only the base's own apt knows what it lacks"
        return _silent("apt", what, f"install docker, `docker pull {base}`, and ask again")
    if (got := sources.run([client, "image", "inspect", base])).returncode:
        # Not pulled for a question's sake: it is tens of GB.
        what = f"docker has not the base, whose own apt must ask: {sources.last_line(got.stderr)}"
        return _silent("apt", what, f"`docker pull {base}`, and ask again")
    script = f"{root}/docker/rocm/fetch_apt.sh:/fetch_apt.sh:ro"
    inside = ["/fetch_apt.sh", "--only-ask", pins.apt.snapshot, *pins.apt.packages]
    got = sources.run([client, "run", "--rm", "--entrypoint", "bash", "--volume", script, base, *inside])
    files = [line for line in got.stdout.splitlines() if line.startswith("'")]  # 'address' name size hash
    if got.returncode or not files:
        said = sources.last_line(got.stderr) if got.returncode else "nothing to download"
        return _gone("apt", f"the archive of {pins.apt.snapshot} does not give them: {said}")
    return Answer("apt", "pass", f"{len(files)} packages named by the signed archive of {pins.apt.snapshot}")


def _base(pins: Pins) -> Answer:
    """The registry's manifest of that digest, whose bytes must have it."""
    if skopeo := shutil.which("skopeo"):
        argv = [skopeo, "inspect", "--raw", f"docker://{pins.base.reference}"]
    elif (docker := shutil.which("docker")) and not sources.run([docker, "buildx", "version"]).returncode:
        argv = [docker, "buildx", "imagetools", "inspect", "--raw", pins.base.reference]
    else:
        return _silent("base", "neither skopeo nor docker's buildx is installed", "install skopeo")
    got = subprocess.run(argv, capture_output=True, timeout=600, check=False, stdin=subprocess.DEVNULL)
    if got.returncode:
        said = sources.last_line(got.stderr.decode(errors="replace"))
        return _gone("base", f"{pins.base.reference} is not served: {said}")
    found = f"sha256:{hashlib.sha256(got.stdout).hexdigest()}"
    if found != pins.base.digest:
        return _bad(
            "base", "source_hash", f"the manifest served for {pins.base.digest} has {found}",
            "the image starts from another base than the pins say",
            "do not change the pin: find out what stands between here and the registry",
        )  # fmt: skip
    return Answer("base", "pass", f"manifest of {len(got.stdout)} bytes has its digest")
