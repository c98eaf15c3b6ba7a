"""The page of proofs is what its data says, and the data hold together."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from kernel_lane.capture.cases import find
from kernel_lane.layer import case_inputs
from megamoe.resources import resource
from megamoe_atom import kernel_edits
from prove_edits import EXPERIMENTS, TREES, Experiment, chosen, merged, row_in, row_of

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
    command = str(claim["settle"]).split(",")[0]
    assert command.startswith(("megamoe ", "docker ", "ansible-")), "what settles a claim on hardware is a command"


def test_each_edit_has_a_claim_and_figures() -> None:
    assert {c["edit"] for c in proven.claims() if "edit" in c} == set(kernel_edits.EDITS)
    assert {e["edit"] for e in proven.figures()["experiments"]} == set(kernel_edits.EDITS)


def test_what_the_figures_show_is_what_the_page_says() -> None:
    data = proven.figures()
    assert data["flydsl_commit"] == kernel_edits.pinned().commit
    assert [row_in(e) for e in data["experiments"]] == [row_of(e) for e in EXPERIMENTS]
    for plan, e in zip(EXPERIMENTS, data["experiments"], strict=True):
        bad = e["without"]["wrong"] + e["without"]["hung"]
        assert bool(bad) == plan.shows, e["case"]
        assert e["with"]["wrong"] + e["with"]["hung"] == 0, e["case"]
        assert e["holds"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", e["date"])


EIGHT = {  # fault: (case, schedules, the tree without); the tree with has all six edits
    "E9": [("w8_changing", ("random@*",), "stock")],
    "E1": [(case, ("random@*",), "all_but_launch_epoch") for case in ("w8_changing", "w8_compact")],
    "E2": [("w8_cu4", ("random@*",), "all_but_xcd_guard")],
    "L1": [
        ("w8_dense", ("late:fifo+@*",), "all_but_tile_wait"),
        ("w8_dense_compact", ("late@*",), "all_but_tile_wait"),
    ],
    "L2": [("w8_changing", ("slow@*",), "all_but_payload_wait")],
}


@pytest.mark.parametrize("fault", EIGHT)
def test_each_fault_shows_at_eight_ranks_with_changing_routing_and_is_gone_in_a_hundred_seeds(fault: str) -> None:
    """Where the issue's five faults are concerned, so are 100 random seeds on eight ranks with all six edits."""
    rows = [r for r in proven.figures()["experiments"] if r["fault"] == fault]
    for case, schedules, before in EIGHT[fault]:
        (row,) = [r for r in rows if (r["case"], tuple(r["schedules"])) == (case, schedules)]
        assert row["trees"] == {"without": list(TREES[before]), "with": list(TREES["all"])}
        assert row["without"]["wrong"] + row["without"]["hung"] > 0
        assert row["with"]["runs"] == 100 and row["with"]["wrong"] + row["with"]["hung"] == 0
        of = find(case)
        assert of.ranks == 8 and len({f.seed for f in of.forwards}) == len(of.forwards) > 1


@pytest.mark.parametrize("case", ["w8_dense", "w8_dense_compact"])
def test_the_cases_of_the_tile_wait_fill_tiles_on_every_rank(case: str) -> None:
    """64-row tiles and K-steps of 256: below 64 rows or four steps the fault hides."""
    of = find(case)
    assert of.hidden // 256 >= 4
    for forward in case_inputs(of)[1]:
        rows = torch.cat([ids.flatten() for _, _, ids in forward]).bincount(minlength=of.experts)
        assert rows.min() >= 64


def test_a_new_row_replaces_its_own_alone_and_keeps_the_plan_order() -> None:
    def row(e: Experiment, mark: int) -> dict[str, object]:
        trees = {"without": list(TREES[e.before]), "with": list(TREES[e.after])}
        return {"edit": e.edit, "fault": e.fault, "case": e.case, "schedules": list(e.schedules),
                "launches_before": e.start, "trees": trees, "mark": mark}  # fmt: skip

    first, second, third = EXPERIMENTS[:3]
    gone = row(first, 9) | {"case": "no longer planned"}
    figures = {"seeds": 1, "experiments": [row(third, 1), gone, row(first, 1)]}
    new = merged(merged(figures, row(second, 2)), row(third, 2))
    assert [(r["case"], r["mark"]) for r in new["experiments"]] == [(first.case, 1), (second.case, 2), (third.case, 2)]
    assert {e.edit for e in chosen(["xcd_guard"])} == {"xcd_guard"}
    assert [e.case for e in chosen(["tile_wait/w8_dense"])] == ["w8_dense"]


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
