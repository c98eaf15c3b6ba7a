"""Reports: identical input gives identical bytes, nothing comes from outside, a server's text is escaped."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

from megamoe.report.model import build
from megamoe.report.render import to_html, to_json, to_junit, to_markdown

EVIL = "<script>alert(1)</script>\x00"


def envelope(path: Path, status: str) -> str:
    path.write_text(
        json.dumps(
            {
                "schema_version": 1,
                "command": "smoke",
                "status": status,
                "exit_code": 0,
                "summary": f"it said {EVIL}",
                "findings": [],
                "data": {
                    "checks": [
                        {"name": "chat", "status": "pass", "detail": EVIL, "seconds": 0.1},
                        {"name": "fused path", "status": "not_run", "detail": "no source", "seconds": 0.0},
                    ]
                },
            }
        )
    )
    return str(path)


def test_identical_input_gives_identical_bytes(tmp_path: Path) -> None:
    source = envelope(tmp_path / "a.json", "warn")
    for render in (to_html, to_json, to_junit, to_markdown):
        assert render(build([source], None, "t")) == render(build([source], None, "t"))


def test_the_page_is_self_contained_and_escapes_what_a_server_said(tmp_path: Path) -> None:
    page = to_html(build([envelope(tmp_path / "a.json", "pass")], None, "t"))
    assert "<script" not in page and "src=" not in page and "<link" not in page and "@import" not in page
    assert "prefers-color-scheme: dark" in page and 'name="viewport"' in page


def test_the_worst_section_names_the_report_and_junit_never_passes_what_did_not_run(tmp_path: Path) -> None:
    report = build([envelope(tmp_path / "a.json", "pass"), envelope(tmp_path / "b.json", "invalid")], None, "t")
    suite = ET.fromstring(to_junit(report))
    assert report.status == "invalid"
    assert (suite.get("failures"), suite.get("skipped"), suite.get("tests")) == ("1", "2", "6")
