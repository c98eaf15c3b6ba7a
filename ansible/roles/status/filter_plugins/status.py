"""What is known of each node as a line, a table and Prometheus metrics. Pure; what could not be read is "unknown"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Result = Mapping[str, Any]
# Metric -> help; the alert rules and the dashboard may name these, those of HAProxy's exporter and those of the engine.
METRICS = {
    "megamoe_node_serving": "1 when the node's release record says that it passed its gate and serves",
    "megamoe_node_healthy": "1 when a completion on the node itself was answered; absent when nobody could ask",
    "megamoe_node_gate_passed": "1 when the gate of the recorded release passed",
    "megamoe_node_drift": "fields in which the container differs from the plan; absent when nobody could compare",
    "megamoe_node_epoch_share": "largest share of the kernel's launch epoch used by a rank; absent without evidence",
    "megamoe_node_info": "1, with release, image and state as labels",
    "megamoe_status_time_seconds": "when this was read, seconds since 1970",
}
COLUMNS = ("host", "state", "release", "health", "gateway", "gate", "epoch", "drift", "image")


def _envelope(result: Result) -> Mapping[str, Any]:
    try:
        value = json.loads(result.get("stdout") or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def line(
    host: str, facts: Result, container: Result, evidence: Result, completion: Result, gateways: Result, drift: Result
) -> dict[str, Any]:
    """One node from the registered results of roles/status/tasks/node.yml."""
    if facts.get("unreachable") or "state" not in facts:
        return {
            "host": host, "state": "unreachable", "release": "unknown", "previous": "unknown", "releases": [],
            "health": "unknown", "gateway": "unknown", "gate": "unknown", "epoch_share": None, "drift": None,
            "image": "unknown", "why": str(facts.get("msg", "")).strip()[:300],
        }  # fmt: skip
    state, records = facts["state"], facts["records"]
    release = state.get("release", "")
    record = records.get(release, {})
    body = completion.get("json") if isinstance(completion.get("json"), dict) else {}
    inspected = container.get("container") or {}
    running = bool(inspected.get("State", {}).get("Running"))
    if running:
        health = "answers" if body.get("choices") else "does not answer"
    else:
        health = "unknown" if container.get("msg") else "stopped" if inspected else "no container"
    shares = [r["epoch_share"] for r in _envelope(evidence).get("data", {}).get("ranks", []) if "epoch_share" in r]
    compared = drift.get("envelopes", {}).get("verify-deploy", {})
    seen = {r["status"] for r in gateways.get("results", []) if r.get("status")}
    return {
        "host": host,
        "state": state.get("state", "bare"),
        "release": release or "none",
        "previous": state.get("previous") or "none",
        "refused": state.get("refused", ""),
        "releases": sorted(records),
        "health": health,
        "gateway": ", ".join(sorted(seen)) or "unknown",
        "gate": record.get("gate", {}).get("status", "none"),
        "recorded_at": record.get("recorded_at", ""),
        "commit": record.get("commit", ""),
        "epoch_share": max(shares) if shares else None,
        "drift": compared.get("data", {}).get("drift"),
        "drift_fields": [f["what"] for f in compared.get("findings", []) if f.get("code") == "drift"],
        "image": record.get("image", "none"),
    }


def table(lines: list[Mapping[str, Any]]) -> list[str]:
    """Aligned columns, one line per node; the image by the first twelve digits of its digest."""
    rows = [COLUMNS]
    for node in lines:
        share, drift = node["epoch_share"], node["drift"]
        rows.append(
            (
                node["host"], node["state"], node["release"], node["health"], node["gateway"], node["gate"],
                "unknown" if share is None else f"{share:.2%}", "unknown" if drift is None else str(drift),
                node["image"].rpartition(":")[2][:12],
            )
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def metrics(lines: list[Mapping[str, Any]], now_s: float | None = None) -> str:
    """The text format of Prometheus. A value that nobody could read is left out, so that absence can be seen."""
    import time

    found: dict[str, list[str]] = {name: [] for name in METRICS}

    def add(name: str, value: float | int | bool | None, **labels: str) -> None:
        if value is not None:
            text = ",".join(f'{k}="{_escaped(v)}"' for k, v in labels.items())
            found[name].append(f"{name}{'{' + text + '}' if text else ''} {float(value):g}")

    for node in lines:
        host = node["host"]
        add("megamoe_node_serving", node["state"] == "serving", node=host)
        healthy = {"answers": 1, "does not answer": 0, "stopped": 0, "no container": 0}.get(node["health"])
        add("megamoe_node_healthy", healthy, node=host)
        add("megamoe_node_gate_passed", node["gate"] in ("pass", "warn"), node=host)
        add("megamoe_node_drift", node["drift"], node=host)
        add("megamoe_node_epoch_share", node["epoch_share"], node=host)
        add("megamoe_node_info", 1, node=host, release=node["release"], image=node["image"], state=node["state"])
    text = ""
    for name, help_text in METRICS.items():
        if name == "megamoe_status_time_seconds":
            found[name] = [f"{name} {int(time.time() if now_s is None else now_s)}"]
        text += f"# HELP {name} {help_text}\n# TYPE {name} gauge\n" + "".join(f"{entry}\n" for entry in found[name])
    return text


def _escaped(value: str) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class FilterModule:
    """Ansible's hook."""

    def filters(self) -> dict[str, Any]:
        """Name to function."""
        return {"status_line": line, "status_table": table, "status_metrics": metrics}
