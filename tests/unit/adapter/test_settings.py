"""The environment, parsed once: defaults, both spellings, and errors that name the variable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from megamoe_atom.problem import Exit, Problem
from megamoe_atom.settings import GIB, Settings, parse, parse_heap_size, unknown_names


def test_an_empty_environment_asks_for_nothing() -> None:
    assert parse({}) == Settings()
    assert not Settings().requested
    assert Settings().status_dir == Path("/run/megamoe/status")


@pytest.mark.parametrize(
    ("one", "two", "requested"), [("1", "1", True), ("1", "0", False), ("0", "1", False), ("on", "on", True)]
)
def test_both_switches_together_ask_for_megamoe(one: str, two: str, requested: bool) -> None:
    assert parse({"ATOM_USE_FLYDSL": one, "ATOM_USE_FLYDSL_FUSED": two}).requested is requested


def test_every_setting_reaches_its_field() -> None:
    got = parse(
        {
            "ATOM_USE_FLYDSL": "1",
            "ATOM_USE_FLYDSL_FUSED": "1",
            "ATOM_FLYDSL_KERNELS_PATH": "/opt/flydsl",
            "MEGAMOE_ACCEPT_NO_SWIGLU_LIMIT": "1",
            "MEGAMOE_SELFTEST": "off",
            "MEGAMOE_STATUS_DIR": "/var/s",
            "MORI_SHMEM_HEAP_SIZE": "6G",
            "MORI_SHMEM_MODE": "ISOLATION",
            "COMPILE_ONLY": "1",
            "ATOM_MEGA_MTPR": "4096",
            "ATOM_USE_TRITON_MOE": "1",
            "ATOM_USE_TRITON_MOE_DECODE": "1",
        }
    )
    assert got == Settings(
        True, True, Path("/opt/flydsl"), 4096, True, False, Path("/var/s"), "isolation", True, 6 * GIB, True, True, True
    )


@pytest.mark.parametrize(
    "name",
    [
        "ATOM_USE_FLYDSL",
        "ATOM_USE_FLYDSL_FUSED",
        "MEGAMOE_SELFTEST",
        "COMPILE_ONLY",
        "MEGAMOE_ACCEPT_NO_SWIGLU_LIMIT",
        "ATOM_USE_TRITON_MOE",
        "ATOM_USE_TRITON_MOE_DECODE",
    ],
)
def test_a_switch_that_is_neither_on_nor_off_is_refused_by_name(name: str) -> None:
    with pytest.raises(Problem) as caught:
        parse({name: "maybe"})
    assert caught.value.code == "env_switch"
    assert caught.value.exit_code == Exit.REFUSED
    assert name in caught.value.reasons[0].what


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("MEGAMOE_SELFTST", "MEGAMOE_SELFTEST"),
        ("MEGAMOE_STATUSDIR", "MEGAMOE_STATUS_DIR"),
        ("MEGAMOE_ACK_NO_SWIGLU_LIMIT", "MEGAMOE_ACCEPT_NO_SWIGLU_LIMIT"),
    ],
)
def test_a_mistyped_name_is_refused_with_the_nearest_one(wrong: str, right: str) -> None:
    with pytest.raises(Problem) as caught:
        parse({wrong: "1"})
    assert caught.value.code == "env_unknown"
    assert right in caught.value.reasons[0].fix


def test_names_of_the_command_line_and_the_rehearsal_are_left_alone() -> None:
    assert (
        parse({"MEGAMOE_DEBUG": "1", "MEGAMOE_PORT": "8000", "MEGAMOE_REHEARSAL_FAULT": "x", "PATH": "/bin"})
        == Settings()
    )


def test_all_errors_are_shown_together() -> None:
    with pytest.raises(Problem) as caught:
        parse({"ATOM_USE_FLYDSL": "ja", "MEGAMOE_X": "1", "MORI_SHMEM_HEAP_SIZE": "lots", "ATOM_MEGA_MTPR": "8k"})
    assert sorted(r.code for r in caught.value.reasons) == ["env_number", "env_switch", "env_unknown", "heap_size"]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("6G", 6 * GIB),
        ("6GB", 6 * GIB),
        ("6GiB", 6 * GIB),
        ("512m", 2**29),
        ("64KiB", 2**16),
        ("4294967296", 2**32),
        ("0", 0),
    ],
)
def test_heap_sizes_are_read_as_mori_reads_them(text: str, size: int) -> None:
    assert parse_heap_size(text) == size


@pytest.mark.parametrize("text", ["", "1.5G", "G", "6T", "-1G", "6 G", "12B", "6 gigabytes"])
def test_a_size_that_mori_would_misread_is_refused(text: str) -> None:
    with pytest.raises(Problem, match="MORI_SHMEM_HEAP_SIZE"):
        parse_heap_size(text)


@pytest.mark.parametrize(
    ("mode", "read", "known", "heap"),
    [
        ("static_heap", "static", True, 4 * GIB),
        ("VMM_HEAP", "vmm", True, 16 * GIB),
        ("isolation", "isolation", True, 0),
        ("Isolation", "static", False, 4 * GIB),
        ("vmm", "static", False, 4 * GIB),
    ],
)
def test_shmem_modes_are_read_as_mori_reads_them(mode: str, read: str, known: bool, heap: int) -> None:
    got = parse({"MORI_SHMEM_MODE": mode})
    assert (got.shmem_mode, got.shmem_mode_known, got.heap_bytes) == (read, known, heap)


def test_no_name_that_the_repository_itself_sets_is_refused_as_unknown() -> None:
    root = Path(__file__).parents[3]
    named: dict[str, str] = {}
    for folder in ("docker", "scripts", "ansible", "atom_patch"):
        for path in (root / folder).rglob("*"):
            if path.is_file() and path.suffix in (".py", ".sh", ".yml", ".yaml", ".j2", ".toml", ".hcl", ""):
                text = path.read_text(encoding="utf-8", errors="ignore")
                named |= {name: str(path) for name in re.findall(r"\bMEGAMOE_[A-Z0-9]+(?:_[A-Z0-9]+)*_?", text)}
    assert len(named) > 5
    unknown = [r.what for r in unknown_names(dict.fromkeys(named, "1"))]
    assert unknown == [], "add them to settings.py"
