"""Inspections of any shape: a row per field, unknown where it is unknown, never a traceback."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from megamoe.deploy.load import parse_deploy
from megamoe.plan.container import ContainerSpec, build
from megamoe.plan.judge import judge
from megamoe.verify_deploy.compare import compare
from megamoe.verify_deploy.inspection import one_container
from megamoe_atom.problem import Exit, Problem
from plan_support import patched

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["Name", "Soft", "PathOnHost", "Env", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)
_KEYS = [
    "Ulimits",
    "Devices",
    "DeviceRequests",
    "GroupAdd",
    "ShmSize",
    "Init",
    "IpcMode",
    "CapAdd",
    "Binds",
    "RestartPolicy",
    "SecurityOpt",
    "NetworkMode",
    "Privileged",
]


@functools.cache
def spec() -> ContainerSpec:
    loaded = parse_deploy(yaml.safe_dump(patched()))
    return build(loaded.deploy, judge(loaded, {}).context.profile, {})


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.sampled_from(_KEYS), _JSON),
    st.dictionaries(st.sampled_from(["Env", "Labels", "Cmd", "Image", "User", "StopTimeout"]), _JSON),
    st.dictionaries(st.sampled_from(["Args", "State", "Mounts", "RepoDigests", "Image", "Name", "ImageDigest"]), _JSON),
)
def test_no_inspection_gives_a_traceback(host: Any, config: Any, top: Any) -> None:
    rows = compare(spec(), {**top, "HostConfig": host, "Config": config})
    assert {row.state for row in rows} <= {"same", "drift", "unknown"}


def test_an_empty_inspection_is_all_unknown() -> None:
    assert {row.state for row in compare(spec(), {})} == {"unknown"}


@pytest.mark.parametrize("raw", [[], {}, [1], "x", None, [{"Name": "/a"}, {"Name": "/b"}]], ids=str)
def test_what_is_no_single_container_is_refused(raw: Any) -> None:
    with pytest.raises(Problem) as caught:
        one_container(raw, "megamoe")
    assert caught.value.exit_code is Exit.REFUSED
