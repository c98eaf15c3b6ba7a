"""Whose facts these are, and of when. Pure. It never blocks: clocks and names differ on healthy sites, too."""

from __future__ import annotations

import ipaddress

from megamoe.deploy.schema import Deploy
from megamoe.envelope import Finding
from megamoe.preflight.reading import Facts, finding, num, text

OLD_S = 86400  # a day: GPUs are taken, drivers updated and disks filled within one
AHEAD_S = 3600  # more than the clocks of two machines without NTP are apart by chance


def provenance(facts: Facts, deploy: Deploy, now: float) -> list[Finding]:
    """now: seconds since the epoch, by the clock of who judges."""
    return [*_age(facts, now), *_host(facts, deploy)]


def _age(facts: Facts, now: float) -> list[Finding]:
    at = num(facts.get("collected_at"))
    if at is None:
        return []
    age = now - at
    if age > OLD_S:
        return [finding("FACTS_OLD", "warn", f"the facts are {_span(age)} old", "what is in use, installed and free "
                        "changes within a day",
                        "collect them again: `megamoe preflight DEPLOY --collect` on the host")]  # fmt: skip
    if age < -AHEAD_S:
        return [finding("FACTS_IN_THE_FUTURE", "warn", f"the facts are of a time {_span(-age)} from now", "a clock is "
                        "wrong, here or on the host, and logs and certificates of the two then contradict each other",
                        "compare `date -u` on both, and let NTP set them (`timedatectl set-ntp true`)")]  # fmt: skip
    return []


def _span(seconds: float) -> str:
    return f"{seconds / 86400:.0f} days" if seconds >= 2 * 86400 else f"{seconds / 3600:.0f} hours"


def _host(facts: Facts, deploy: Deploy) -> list[Finding]:
    """Only an info: an inventory may name its hosts as it likes."""
    theirs, ours = text(facts.get("hostname"), 253), deploy.host or ""
    if not theirs or not ours or _is_address(ours) or _short(theirs) == _short(ours):
        return []
    return [finding("FACTS_OF_ANOTHER_NAME", "info", f"the facts are of host {theirs}, DEPLOY is for {ours}", "an "
                    "inventory may name a host otherwise; if these are two machines, the wrong one was judged",
                    f"if {ours} is not {theirs}, collect the facts on {ours}")]  # fmt: skip


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _short(name: str) -> str:
    return name.split(".")[0].casefold()
