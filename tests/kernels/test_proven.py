"""The page of proofs is what its data says, and the data hold together."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from megamoe.resources import resource
from megamoe_atom import kernel_edits
from prove_edits import EXPERIMENTS

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("proven", ROOT / "scripts/docs/proven.py")
assert _spec and _spec.loader
proven = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(proven)


def test_the_page_is_up_to_date() -> None:
    have = (ROOT / "scripts/docs/proven.md").read_text(encoding="utf-8")
    assert have == proven.page(), "run `python scripts/docs/proven.py > scripts/docs/proven.md`"


@pytest.mark.parametrize("claim", proven.claims(), ids=lambda c: c["says"][:40])
def test_each_claim_names_its_proof_and_what_settles_it(claim: dict[str, object]) -> None:
    assert set(claim) <= {"about", "says", "proof", "how", "open", "settle", "edit"}
    assert claim["proof"]
    assert set(claim["proof"]) <= set(proven.KINDS)  # type: ignore[call-overload]
    assert claim["how"]
    assert claim["settle"]


def test_each_edit_has_a_claim_and_figures() -> None:
    assert {c["edit"] for c in proven.claims() if "edit" in c} == set(kernel_edits.EDITS)
    assert {e["edit"] for e in proven.figures()["experiments"]} == set(kernel_edits.EDITS)


def test_what_the_figures_show_is_what_the_page_says() -> None:
    data = proven.figures()
    assert data["flydsl_commit"] == kernel_edits.pinned().commit
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", data["date"])
    planned = [(e.edit, e.case, list(e.schedules), e.start) for e in EXPERIMENTS]
    assert [(e["edit"], e["case"], e["schedules"], e["launches_before"]) for e in data["experiments"]] == planned
    for plan, e in zip(EXPERIMENTS, data["experiments"], strict=True):
        bad = e["without"]["wrong"] + e["without"]["hung"]
        assert bool(bad) == plan.shows, e["case"]
        assert e["with"]["wrong"] + e["with"]["hung"] == 0, e["case"]
        assert e["holds"]


def test_the_edited_kernels_are_clean_and_a_limit_of_none_changes_no_byte() -> None:
    kernels = proven.figures()["kernels"]
    stock = {(r["model"], r["tokens"]): r for r in kernels if r["tree"] == "stock"}
    for r in kernels:
        assert r["scratch"] == 0
        if r["tree"] in ("all", "async_copy_off"):
            assert r["findings"] == []
            assert r["lds_dma_left"] == 0
        if r["tree"] in ("swiglu_limit", "xcd_guard") and not r["limit"]:
            assert r["sha256"] == stock[r["model"], r["tokens"]]["sha256"]
    assert any(r["findings"] for r in stock.values())


def test_the_files_that_the_page_names_exist() -> None:
    text = proven.page()
    for name in set(re.findall(r"\b(?:tests|scripts|docker)/[\w./]+\w", text)):
        assert (ROOT / name).exists(), name
    assert resource("tests/golden").is_dir()
