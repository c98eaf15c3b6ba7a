"""What a rule gets and what it yields. Rules are pure: no file, no host, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from megamoe.deploy.profiles import Profile
from megamoe.deploy.schema import Args, Container, Deploy
from megamoe.envelope import Severity
from megamoe.plan.effective import Layout

Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """One finding of a rule. `keys` are the DEPLOY keys it depends on: when one could not be read, it is dropped."""

    code: str
    severity: Severity
    what: str
    why: str
    fix: str
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """Everything a rule may look at."""

    deploy: Deploy
    profile: Profile
    facts: dict[str, Any]
    env: dict[str, str]  # as given in DEPLOY, text
    layout: Layout

    @property
    def args(self) -> Args:
        return self.deploy.args

    @property
    def container(self) -> Container:
        return self.deploy.container

    @property
    def ep_size(self) -> int:
        """Ranks that share the experts; with mega as many as there will be once its other reasons are settled."""
        if self.layout.ep_size > 1 or not self.mega:
            return self.layout.ep_size
        return self.args.tensor_parallel * self.args.data_parallel

    @property
    def mega(self) -> bool:
        return self.deploy.args.moe_backend == "mega"

    @property
    def on_gpu(self) -> bool:
        return self.deploy.engine == "atom"


Rule = Callable[[Context], Iterator[Hit]]


def key(*names: str) -> tuple[Key, ...]:
    """Dotted names as keys: key("args.port") is (("args", "port"),)."""
    return tuple(tuple(name.split(".", 1)) for name in names)


def refuse(code: str, what: str, why: str, fix: str, *keys: str) -> Hit:
    return Hit(code, "error", what, why, fix, key(*keys))


def warn(code: str, what: str, why: str, fix: str, *keys: str) -> Hit:
    return Hit(code, "warn", what, why, fix, key(*keys))
