"""The verdict on a rehearsal. Pure but for reading the reports that the play left in the run's folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Exit

from megamoe.envelope import Finding, Outcome
from megamoe.rehearse.play import PlayResult
from megamoe.rehearse.settings import FAULTS, Settings


def judge_run(settings: Settings, play: PlayResult, serving: list[str], faulty: list[str], folder: Path) -> Outcome:
    """One outcome.

    Without a fault it passes when the play ended well and every node serves behind the gateway. With a fault it never
    passes: caught is `fail` with what caught it, and not caught is `fail` too, said as the worse thing that it is.
    """
    findings: list[Finding] = []
    data: dict[str, Any] = {
        "hosts": play.hosts, "plays": [{"name": n, "seconds": s} for n, s in play.plays], "serving": serving,
        "changed": play.changed_total, "verdicts": verdicts(folder / "reports"),
    }  # fmt: skip
    half = sorted(set(serving) & set(faulty))
    if half:
        findings.append(
            Finding(
                "rehearse_half_rolled",
                "error",
                f"the gateway sends requests to {', '.join(half)}, which run the fault {settings.fault}",
                "a node that no gate passed must not serve",
                "see ansible.log; this is a fault of the roles",
            )
        )
    if play.exit_code:
        findings.insert(0, first_cause(play))
        caught = f"fault {settings.fault} was caught: " if settings.fault != "none" else "the roll-out stopped: "
        where = f"{findings[0].host}, {play.failures[0]['task']}" if play.failures else "ansible"
        data["caught_by"] = where
        data["next"] = [f"less {folder / 'ansible.log'}", "make rehearse"]
        # Ansible's own 4 is "unreachable"; everything else that stops a play is a check that failed.
        unreachable = any(f["event"] == "unreachable" for f in play.failures)
        return Outcome(
            "fail", Exit.UNREACHABLE if unreachable else Exit.CHECK_FAILED, f"{caught}{where}", findings, data
        )
    if settings.fault != "none":
        findings.append(
            Finding(
                "rehearse_fault_not_caught",
                "error",
                f"the fault {settings.fault} ({FAULTS[settings.fault]}) was rolled out and no gate caught it",
                "a gate that cannot fail proves nothing",
                f"compare the reports in {folder / 'reports'}",
            )
        )
        return Outcome("fail", Exit.CHECK_FAILED, f"fault {settings.fault} was NOT caught", findings, data)
    missing = sorted(set(settings.node_names()) - set(serving))
    if missing:
        findings.append(
            Finding(
                "rehearse_not_serving",
                "error",
                f"the play ended well, but the gateway sends nothing to {', '.join(missing)}",
                "a roll-out is done when every node serves",
                "see ansible.log and the gateway's statistics",
            )
        )
        return Outcome(
            "fail", Exit.CHECK_FAILED, f"{len(missing)} of {settings.nodes} nodes do not serve", findings, data
        )
    address = f"http://127.0.0.1:{settings.gateway_port}"
    data["next"] = [
        f"curl {address}/v1/models",
        f"megamoe smoke {address}",
        "make rehearse FAULT=gate_up_mispaired",
        "make rehearse-down",
    ]
    if play.changed_total == 0:
        return Outcome(
            "pass",
            Exit.PASS,
            f"nothing to do: changed=0 on every one of {len(play.hosts)} hosts, {settings.nodes} nodes serve",
            findings,
            data,
        )
    return Outcome("pass", Exit.PASS, f"{settings.nodes} nodes are validated and serve at {address}", findings, data)


def first_cause(play: PlayResult) -> Finding:
    """The first failure in the play. When the task ran one of our verbs, the verb's own first error is the cause."""
    if not play.failures:
        return Finding(
            "rehearse_play",
            "error",
            f"ansible-playbook ended with {play.exit_code} and named no task",
            "nothing can be said about the nodes",
            "read ansible.log",
        )
    failure = play.failures[0]
    place = f"failed task: {failure['task']}"
    envelope = _envelope(failure.get("stdout") or "") or _envelope(str(failure.get("msg") or ""))
    if envelope is not None:
        error = next((f for f in envelope.get("findings", []) if f.get("severity") == "error"), None)
        if error is not None:
            return Finding(
                error["code"], "error", error["what"], error["why"], error["fix"], host=failure["host"], quote=place
            )
        return Finding(
            f"{envelope['command']}_{envelope['status']}",
            "error",
            str(envelope.get("summary")),
            f"megamoe {envelope['command']} decides here",
            "read its report",
            host=failure["host"],
            quote=place,
        )
    message = str(failure.get("msg") or failure.get("stderr") or failure.get("stdout") or "no message").strip()
    return Finding(
        "rehearse_" + failure["event"],
        "error",
        message,
        "the roll-out stops at the first failure",
        "read ansible.log from that task on",
        host=failure["host"],
        quote=place,
    )


def _envelope(text: str) -> dict[str, Any] | None:
    """The one JSON envelope in a text that may have lines around it."""
    for match in re.finditer(r"^\s*\{", text, re.MULTILINE):
        try:
            body, _ = json.JSONDecoder().raw_decode(text[match.start() :].lstrip())
        except ValueError:
            continue
        if isinstance(body, dict) and "command" in body and "status" in body:
            return body
    return None


def verdicts(reports: Path) -> list[dict[str, str]]:
    """Every envelope saved under the report folder: host (the folder below it), check, status and what it said.

    Only the first clause of what it said is taken: the rest is for the reader of the envelope itself.
    """
    found: list[dict[str, str]] = []
    for path in sorted(reports.rglob("*.json")) if reports.is_dir() else []:
        try:
            body = json.loads(path.read_text(errors="replace"))
        except ValueError:
            continue  # cut short by whatever stopped the play; the first cause tells of that
        if isinstance(body, dict) and {"command", "status", "summary"} <= body.keys():
            host, said = path.relative_to(reports).parts[0], str(body["summary"]).split("; ")[0]
            # One check may have run twice, such as status before and after the gate: the file's name says which.
            check = path.stem if path.stem.startswith(f"{body['command']}-") else body["command"]
            found.append({"host": host, "check": check, "status": body["status"], "said": said})
    return found


def look_at(settings: Settings, folder: Path) -> dict[str, str]:
    """What to open next; only what exists is named."""
    candidates = {"log": folder / "ansible.log", "build log": folder / "build.log"}
    pages = sorted((folder / "reports").rglob("*.html")) if (folder / "reports").is_dir() else []
    result = {"report": str(folder / "report.html"), "summary": str(folder / "summary.json")}  # written last
    result |= {name: str(path) for name, path in candidates.items() if path.exists()}
    for page in pages:
        result[f"report {page.relative_to(folder / 'reports').parts[0]}"] = str(page)
    return result
