"""Which container of an inspection is meant, and files that cannot be one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from megamoe.text_input import read_bytes
from megamoe.verify_deploy.inspection import one_container, read_inspection
from megamoe_atom.problem import Exit, Problem

A, B = {"Name": "/a", "HostConfig": {}}, {"Name": "/b", "HostConfig": {}}


def test_of_several_containers_the_planned_name_is_taken_or_all_are_named() -> None:
    assert one_container([A, B], "b") is B
    with pytest.raises(Problem) as caught:
        one_container([A, B], "megamoe")
    reason = caught.value.reasons[0]
    assert reason.code == "inspect_ambiguous"
    assert "2 containers (a, b), none of them named megamoe" in reason.what
    assert "container.name" in reason.fix


def test_two_outputs_in_one_file_are_one_list_and_a_cut_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "inspect.json"
    file.write_text(json.dumps([A]) + "\n" + json.dumps([B]))
    assert read_inspection(str(file)) == [A, B]
    file.write_text(json.dumps([A]) + "\n" + json.dumps([B])[:-5])
    with pytest.raises(Problem) as caught:
        read_inspection(str(file))
    assert caught.value.reasons[0].code == "json_syntax"


def test_a_link_that_leads_back_to_itself_is_a_missing_file(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(Problem) as caught:
        read_bytes(loop)
    assert caught.value.exit_code is Exit.UNREACHABLE
    assert "link" in caught.value.reasons[0].what
