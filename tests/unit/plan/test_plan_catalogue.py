"""Every code that `plan` can print is explained, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

import megamoe.deploy.load
import megamoe.plan
import pytest
from megamoe.deploy.profiles import load_profile, names
from megamoe.plan.catalogue import codes, explain
from megamoe_atom.problem import Problem


def printed() -> set[str]:
    folders = (Path(megamoe.plan.__file__).parent, Path(megamoe.deploy.load.__file__).parent)
    text = "".join(p.read_text() for folder in folders for p in sorted(folder.glob("*.py")))
    found = re.findall(r'(?:\b(?:refuse|warn|make|Hit|Told|Reason)|Problem)\(\s*"([a-z0-9_]+)"', text)
    return set(found) - {"deploy_unreadable", "facts_not_an_object", "code_unknown", "usage"}


def test_the_catalogue_and_the_code_name_the_same_codes() -> None:
    assert printed() == set(codes())


def test_an_unknown_code_offers_the_nearest() -> None:
    assert "1.5G" not in explain("heap_size_malformed").summary
    with pytest.raises(Problem, match="heap_too_small"):
        explain("heap_too_smal")


@pytest.mark.parametrize("name", names())
def test_every_profile_is_readable_and_its_validated_limit_is_legal(name: str) -> None:
    from megamoe.plan.arithmetic import largest_legal

    profile = load_profile(name)
    for ranks in profile.ep_sizes:
        assert profile.validated_mbt <= (largest_legal(profile, ranks) or 0), ranks
