"""Runs every rule on a loaded DEPLOY and puts the plan together. Pure: the caller has read all files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megamoe_atom.problem import Exit, Problem, Reason

from megamoe.deploy.load import Loaded, dotted
from megamoe.deploy.profiles import Profile, load_profile
from megamoe.envelope import Finding, Outcome
from megamoe.plan import memory, rules_container, rules_env, rules_eplb, rules_parallel, rules_tokens
from megamoe.plan.container import build
from megamoe.plan.effective import flags_of, layout_of
from megamoe.plan.render import compose, run_command
from megamoe.plan.rule import Context, Hit, Key, Rule

RULES: tuple[Rule, ...] = (
    *rules_parallel.RULES,
    *rules_eplb.RULES,
    *rules_tokens.RULES,
    *rules_env.RULES,
    *memory.RULES,
    *rules_container.RULES,
)


@dataclass(frozen=True, slots=True)
class Judged:
    """All findings, and what they were judged on."""

    findings: list[Finding]
    context: Context

    @property
    def refused(self) -> bool:
        return any(f.severity == "error" for f in self.findings)


def judge(loaded: Loaded, facts: dict[str, Any]) -> Judged:
    """Every reason at once, those of form first. Errors of form silence only the rules that depend on that key."""
    findings = [_finding(loaded, Finding.from_reason(reason), key) for reason, key in loaded.reasons]
    bad = set(loaded.bad)
    profile: Profile | None = None
    try:
        profile = load_profile(loaded.deploy.model.profile)
    except Problem as problem:
        if not _blind((("model", "profile"),), bad):
            reason: Reason = problem.reasons[0]
            findings.append(_finding(loaded, Finding.from_reason(reason), ("model", "profile")))
        bad.add(("model", "profile"))
        # The nearest contract still judges everything that does not depend on the profile.
        profile = load_profile("rehearsal" if loaded.deploy.engine == "reference" else "deepseek-v4-pro")
    context = Context(
        loaded.deploy, profile, facts, {k: str(v) for k, v in loaded.deploy.env.items()}, layout_of(loaded.deploy.args)
    )
    for rule in RULES:
        findings += [
            _finding(loaded, Finding(hit.code, hit.severity, hit.what, hit.why, hit.fix), hit.keys[0])
            for hit in rule(context)
            if not _blind(hit.keys, bad)
        ]
    return Judged(_unique(findings), context)


def outcome_of(loaded: Loaded, facts: dict[str, Any]) -> Outcome:
    """The verb's result: refused with every reason, or accepted with everything that would run."""
    judged = judge(loaded, facts)
    errors = sum(f.severity == "error" for f in judged.findings)
    if errors:
        reasons = "1 reason" if errors == 1 else f"{errors} reasons"
        return Outcome(
            "refused",
            Exit.REFUSED,
            f"{loaded.document.name}: {reasons}; nothing was started",
            judged.findings,
            {"engine": loaded.deploy.engine, "host": loaded.deploy.host},
        )
    data = plan_data(judged.context)
    warned = any(f.severity == "warn" for f in judged.findings)
    return Outcome(
        "warn" if warned else "pass", Exit.PASS, _summary(judged.context), judged.findings, data, _text(data)
    )


def plan_data(context: Context) -> dict[str, Any]:
    """Everything that would run, for Ansible, verify-deploy and people."""
    spec = build(context.deploy, context.profile, context.facts)
    return {
        "host": context.deploy.host,
        "engine": context.deploy.engine,
        "container_engine": context.container.engine,
        "profile": context.profile.name,
        "plan_hash": spec.labels["io.megamoe.plan-hash"],
        "container": spec.as_dict(),
        "env": spec.env,
        "args": flags_of(context.deploy),
        "docker_run": run_command(spec, context.deploy),
        "compose": compose(spec),
        "memory": memory.budget(context),
        "limits": memory.limits(context),
    }


def _blind(keys: tuple[Key, ...], bad: set[Key]) -> bool:
    return any(key in bad or key[:1] in bad for key in keys)


def _finding(loaded: Loaded, finding: Finding, key: Key) -> Finding:
    return Finding(
        finding.code,
        finding.severity,
        finding.what,
        finding.why,
        finding.fix,
        host=loaded.deploy.host,
        file=loaded.document.name,
        line=loaded.document.line_of(key),
    )


def _unique(findings: list[Finding]) -> list[Finding]:
    return list({(f.code, f.what): f for f in findings}.values())


def _summary(c: Context) -> str:
    what = "fused MegaMoE" if c.mega else "standard MoE"
    return (
        f"{c.deploy.host or 'host'}: {c.deploy.engine} with {what}, {c.layout.ranks} ranks, profile {c.profile.name}, "
        f"{c.container.engine}"
    )


def _text(data: dict[str, Any]) -> str:
    lines = [
        "memory per GPU:",
        *(f"  {row['what']:<34} {row['text']:>12}  {row['note']}".rstrip() for row in data["memory"]["rows"]),
    ]
    lines += ["", "limits:", *(f"  {name:<34} {value}" for name, value in data["limits"].items())]
    return "\n".join([*lines, "", "run:", data["docker_run"]])


__all__ = ["RULES", "Hit", "Judged", "dotted", "judge", "outcome_of", "plan_data"]
