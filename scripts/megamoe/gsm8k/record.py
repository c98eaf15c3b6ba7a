"""The run record on disk: opened or resumed, added to, and written whole or not at all."""

from __future__ import annotations

import datetime
import json
import re
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from megamoe_atom.problem import Problem


def open_run(out: Path, fingerprint: str, started: float | None, fresh: bool) -> dict[str, Any]:
    """The run record to go on with, or a new one; what another run left is kept under previous/."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise Problem(
            "out_not_writable",
            what=f"{out} cannot be written: {error.strerror}",
            why="the evidence has to be kept",
            fix="choose another --out",
        ) from None
    path = out / "run.json"
    # A journal without its record is of an unknown run: its answers must not become this run's.
    if path.exists() or (out / "journal.jsonl").exists():
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            old = {"run_id": "unreadable"}
        same_server = started is None or old.get("server_started") is None or abs(old["server_started"] - started) <= 2
        if not fresh and old.get("status") == "partial" and old.get("fingerprint") == fingerprint and same_server:
            print(f"resuming run {old['run_id']}", file=sys.stderr)
            return dict(old)
        keep = out / "previous" / re.sub(r"\W", "_", str(old.get("run_id")))
        keep.mkdir(parents=True, exist_ok=True)
        for item in out.iterdir():
            if item.name != "previous":
                item.rename(keep / item.name)
        print(f"kept what {out} held under {keep}", file=sys.stderr)
    return {"run_id": uuid.uuid4().hex[:12], "started": time.time(), "fingerprint": fingerprint}


def count_requests(journal: Path) -> dict[str, Any]:
    """Requests of all sessions by what became of them. From the journal, which survives a client that was killed."""
    total = retried = failed = 0
    causes: Counter[str] = Counter()
    if journal.exists():
        for line in journal.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue  # the line that was being written when a session was cut
            total += 1
            causes.update(row.get("causes", ()))
            retried += row["attempts"] > 1
            failed += bool(row.get("error"))
    refused = causes["connection refused"]
    return {
        "total": total,
        "retried": retried,
        "failed": failed,
        "refused": refused,
        "causes": dict(sorted(causes.items())),
    }


def ranks_seen(status_dir: str | None, status_command: str | None) -> dict[str, dict[str, Any]] | None:
    """Each rank's process and launches, from the adapter's evidence; None when no source was given.

    Raises:
        Problem: the source named cannot be read (exit 3) or is no evidence (exit 5).
    """
    if not status_dir and not status_command:
        return None
    from megamoe.status.read import read_status, summary_of

    return summary_of(read_status(status_dir, status_command))


def deployment(deploy: str | None, image_digest: str | None) -> dict[str, Any]:
    """Image digest and engine arguments, so that a benchmark of the same deployment can be told from another.

    Raises:
        Problem: the deploy file cannot be read, or names another image than --image-digest (exit 2).
    """
    if deploy is None:
        return {"image_digest": image_digest}
    from megamoe.deploy.load import require_deploy

    plan = require_deploy(deploy)
    digest = re.findall(r"sha256:[0-9a-f]{64}", plan.image)[-1]
    if image_digest is not None and digest not in image_digest:
        raise Problem(
            "image_digest_differs",
            what=f"--image-digest is {image_digest}, the deploy file names {digest}",
            why="the verdict is recorded for one image",
            fix="leave --image-digest out, or give the deploy file of the running container",
        )
    return {"image_digest": digest, "args": plan.args.model_dump(mode="json", exclude_unset=True)}


def epoch(text: str | None, flag: str) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        # docker inspect gives nanoseconds, which fromisoformat does not read
        head, dot, tail = text.partition(".")
        if dot:
            digits = "".join(c for c in tail if c.isdigit())[:6]
            zone = tail.lstrip("0123456789")
            text = f"{head}.{digits}{zone}"
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise Problem(
            "time",
            what=f"{flag} {text!r} is neither epoch seconds nor an ISO time",
            why="the age of a result is judged by it",
            fix="pass e.g. 2026-12-02T06:00:00Z",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()


def write(path: Path, body: dict[str, Any]) -> None:
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(body, indent=1), encoding="utf-8")
    temporary.replace(path)
