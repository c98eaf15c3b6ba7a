"""`megamoe status` says which edits the running kernels carry, and how far they are proven."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from megamoe.status.command import status
from megamoe_atom.kernel_edits import PROOF
from megamoe_atom.status import RankStatus, StatusWriter


@pytest.mark.parametrize("edits", [[], ["launch_epoch", "tile_wait"]], ids=["stock kernels", "edited kernels"])
def test_status_names_the_edits_and_what_proves_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], edits: list[str]
) -> None:
    evidence = RankStatus(0, 1, {}, 8192, ["layers.0"], 1, 5, {"layers.0": 5}, selftest_state="passed")
    evidence.kernel_edits = edits
    StatusWriter(tmp_path, evidence)
    with pytest.raises(SystemExit):
        status(str(tmp_path), None, True)
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["kernel_edits"] == edits
    assert data["kernel_edits_proof"] == (PROOF if edits else "")
    with pytest.raises(SystemExit):
        status(str(tmp_path), None, False)
    assert (PROOF in capsys.readouterr().out) == bool(edits)
