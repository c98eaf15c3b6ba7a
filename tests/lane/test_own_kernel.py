"""A kernel of ours from its bytes to its results: ELF, decoder, machine, bundle, schedules, the command line."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import own_bundle
import pytest
from kernel_lane import hostile
from kernel_lane.bundle import Bundle
from kernel_lane.execute import Executor
from kernel_lane.judge import compare
from kernel_lane.machine.schedule import Schedule
from megamoe.kernels.check import check
from megamoe.kernels.run import foreign, own
from megamoe_atom.problem import Exit, Problem

SCHEDULES = [
    "order",
    "random@1",
    "random@2",
    "frozen",
    "late@1",
    "scatter@2",
    "flag@3",
    "stall@1",
    "slow@4",
    "late:any@2",
    "late:fifo+@1",
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return own_bundle.write(tmp_path_factory.mktemp("own") / "bundle")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("overlap", [False, True], ids=["steps", "overlap"])
def test_every_schedule_gives_the_expected_bits(bundle: Path, schedule: str, overlap: bool) -> None:
    executor = Executor(Bundle.read(bundle))
    run = executor.run(Schedule.parse(schedule), overlap=overlap)
    assert run.stop == "" and compare(executor.bundle, run.results) == []


def test_the_sound_kernel_passes_every_check(bundle: Path) -> None:
    report = hostile.examine(
        Executor(Bundle.read(bundle)), [Schedule.parse(s) for s in ("order", "random", "frozen", "late", "slow")], 3
    )
    assert report.exact and [v for v in report.verdicts if v.fault] == []
    assert not {v.code for v in report.verdicts} & {"unordered_read", "lds_unordered", "lds_early", "flag_early"}


# a planted fault: instruction removed (and which of its occurrences) -> what must be said
PLANTED = {
    "payload store not waited for": ("s_waitcnt vmcnt(0)", 1, "unordered_read"),
    "no barrier between LDS write and read": ("s_barrier", 0, "lds_unordered"),
    "LDS write not waited for": ("s_waitcnt lgkmcnt(0)", 1, "lds_early"),
    "load not waited for": ("s_waitcnt vmcnt(0)", 0, "register_early"),
    "received data not waited for": ("s_waitcnt vmcnt(0)", 4, "register_early"),
    "the peer is not told": ("global_atomic_add v6, v7, s[14:15] sc1", 0, "kernel_stopped"),
    "the flag is not waited for": ("s_cbranch_scc1 L0", 0, "output_differs"),
}


@pytest.mark.parametrize(("text", "occurrence", "code"), PLANTED.values(), ids=PLANTED)
def test_a_planted_fault_is_seen_and_named(tmp_path: Path, text: str, occurrence: int, code: str) -> None:
    folder = own_bundle.write(tmp_path / "bundle", own_bundle.machine_code(without=text, occurrence=occurrence))
    plan = [Schedule(s, limit=40_000) for s in ("order", "random", "frozen", "late", "slow")]
    report = hostile.examine(Executor(Bundle.read(folder)), plan, 4)
    assert code in {v.code for v in report.verdicts}


def command(*words: str, expect: int) -> dict[str, object]:
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "megamoe", "kernels", *words, "--json"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == expect, done.stdout + done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_run_and_check_speak_the_envelope(bundle: Path, tmp_path: Path) -> None:
    ran = command("run", str(bundle), "--schedule", "late@3", "--out", str(tmp_path / "out"), expect=0)
    assert ran["status"] == "pass" and ran["data"]["instructions"] > 500  # type: ignore[index]
    assert command("check", str(bundle), "--result", str(tmp_path / "out"), expect=0)["status"] == "pass"
    checked = command("check", str(bundle), "--schedules", "order,frozen", expect=0)
    assert checked["status"] == "pass" and len(checked["data"]["runs"]) == 2  # type: ignore[index]
    (linted,) = checked["data"]["kernels"]  # type: ignore[index]
    assert linted["kernel"] == "ours" and linted["scratch"] == linted["lds_dma_left"] == 0


_EACH = "for s in json.load(open(b/'bundle.json'))['steps'] for e in s.get('expect',[])]"
_START = "import json,sys,shutil,pathlib; b,o=map(pathlib.Path,sys.argv[1:]); "
RUNNERS = {
    "copies what is expected": (
        _START + "[shutil.copy(b/e['file'],o/(e['name']+'.bin')) " + _EACH, 0, ""),
    "writes nothing": ("pass", 5, "result_missing"),
    "fails": ("import sys; sys.exit('no device')", 1, "runner_failed"),
    "writes something else": (
        _START + "[(o/(e['name']+'.bin')).write_bytes(bytes((b/e['file']).stat().st_size)) " + _EACH,
        1, "output_differs"),
}  # fmt: skip


@pytest.mark.parametrize(("program", "exit_code", "code"), RUNNERS.values(), ids=RUNNERS)
def test_another_executor_is_judged_by_what_it_writes(
    bundle: Path, tmp_path: Path, program: str, exit_code: int, code: str
) -> None:
    script = tmp_path / "runner.py"
    script.write_text(program)
    answer = command("run", str(bundle), "--runner", f"{sys.executable} {script}", expect=exit_code)
    codes = [f["code"] for f in answer["findings"]]  # type: ignore[index, attr-defined]
    assert (code in codes) if code else codes == []


def run_foreign(bundle: Path, tmp_path: Path, program: str, timeout_s: int = 60) -> str:
    """The code of the problem that a runner of this Python text ends in."""
    script = tmp_path / "runner.py"
    script.write_text(program)
    with pytest.raises(Problem) as caught:
        foreign(bundle, f"{sys.executable} {script}", tmp_path / "out", timeout_s)
    return caught.value.code


def test_a_runner_that_hangs_is_ended_with_all_that_it_started(bundle: Path, tmp_path: Path) -> None:
    """Its child holds the output open, as a shell's does: waiting for the pipe's end would take the child's minute."""
    began = time.monotonic()
    child = "import pathlib, subprocess, sys\np = subprocess.Popen(['sleep', '60'])\n"
    told = f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(p.pid))\np.wait()"
    assert run_foreign(bundle, tmp_path, child + told, timeout_s=2) == "runner_timeout"
    assert time.monotonic() - began < 20
    pid = int((tmp_path / "pid").read_text())
    # A killed process is there until it is scheduled once more, which a busy machine may put off.
    while time.monotonic() - began < 20 and running(pid):
        time.sleep(0.05)
    assert not running(pid)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_runner_that_is_not_there_or_fails_in_any_tongue_is_told_apart(bundle: Path, tmp_path: Path) -> None:
    absent = command("run", str(bundle), "--runner", "/nowhere/runner", expect=2)
    assert absent["findings"][0]["code"] == "runner_missing"  # type: ignore[index]
    failing = "import sys; sys.stderr.buffer.write(b'\\xff\\xfe no device'); sys.exit(3)"
    assert run_foreign(bundle, tmp_path, failing) == "runner_failed"


@pytest.mark.parametrize("words", ["", "  ", "'no end"])
def test_a_runner_that_is_no_command_is_refused(bundle: Path, words: str) -> None:
    with pytest.raises(Problem) as caught:
        foreign(bundle, words, None, 60)
    assert caught.value.code == "runner_missing" and caught.value.exit_code == 2


def test_a_runner_takes_no_schedule(bundle: Path) -> None:
    refused = command("run", str(bundle), "--runner", "true", "--schedule", "late@1", expect=2)
    assert refused["findings"][0]["code"] == "runner_schedule"  # type: ignore[index]


def test_results_of_another_run_are_not_taken_for_this_one(bundle: Path, tmp_path: Path) -> None:
    """A runner that does nothing passed, where its folder still held what a sound one had written."""
    out = tmp_path / "out"
    assert own(bundle, "order", out).status == "pass"
    assert run_foreign(bundle, tmp_path, "pass") == "out_exists"
    with pytest.raises(Problem) as caught:
        own(bundle, "order", out)
    assert caught.value.code == "out_exists" and caught.value.exit_code == 2
    with pytest.raises(Problem) as caught:
        own(bundle, "order", bundle / "bundle.json")
    assert caught.value.code == "out_folder"


def test_a_runner_that_changes_what_it_is_compared_with_is_caught(tmp_path: Path) -> None:
    folder = own_bundle.write(tmp_path / "bundle")
    zeros = "; [p.write_bytes(bytes(3072)) for e in es for p in (b/e['file'], o/(e['name']+'.bin'))]"
    program = _START + "es=[e " + _EACH + zeros
    assert run_foreign(folder, tmp_path, program) == "bundle_file"


def test_a_result_of_another_size_or_kind_is_no_result(bundle: Path, tmp_path: Path) -> None:
    answer = command("run", str(bundle), "--runner", f"{sys.executable} -c "
                     "'import sys; [open(sys.argv[2]+\"/out.rank%d.bin\" % r, \"wb\").write(b\"x\") for r in (0, 1)]'",
                     expect=1)  # fmt: skip
    assert [f["code"] for f in answer["findings"]] == ["output_differs"] * 2  # type: ignore[index, attr-defined]
    folders = _START + "[(o/(e['name']+'.bin')).mkdir() " + _EACH
    assert run_foreign(bundle, tmp_path, folders) == "result_missing"


def spoil(folder: Path, change) -> Path:  # type: ignore[no-untyped-def]
    body = json.loads((folder / "bundle.json").read_text())
    change(body, folder)
    (folder / "bundle.json").write_text(json.dumps(body))
    return folder


def launch(body):  # type: ignore[no-untyped-def]
    return body["steps"][0]["launches"][0]


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def unreadable(file: Path) -> None:
    file.unlink()
    file.symlink_to("/proc/self/mem")  # also root's reads of it fail


SPOILED = {
    "a buffer's file is missing": (lambda b, f: (f / b["buffers"][0]["init"]["file"]).unlink(), "bundle_file"),
    "a buffer's file is short": (lambda b, f: (f / b["buffers"][0]["init"]["file"]).write_bytes(b"x"), "bundle_file"),
    "a buffer is not listed": (lambda b, f: b["buffers"].pop(0), "bundle_reference"),
    "a buffer is listed twice": (lambda b, f: b["buffers"].append(b["buffers"][0]), "bundle_reference"),
    "the code object is missing": (lambda b, f: [p.unlink() for p in (f / "code").iterdir()], "bundle_file"),
    "a later format": (lambda b, f: b.update(version=99), "bundle_format"),
    "the first format, which knew no copies": (lambda b, f: b.update(version=1), "bundle_format"),
    "a copy past an end": (
        lambda b, f: b["steps"].insert(
            0, {"copy": [{"buffer": "r0.x", "offset": 4, "from": "r0.in", "at": 0, "bytes": 3072}]}
        ),
        "bundle_reference",
    ),
    "a copy from nowhere": (
        lambda b, f: b["steps"].insert(
            0, {"copy": [{"buffer": "r0.x", "offset": 0, "from": "r0.y", "at": 0, "bytes": 4}]}
        ),
        "bundle_reference",
    ),
    "a reach past an end that is none": (lambda b, f: b["buffers"][0].update(read_past=-1), "bundle_format"),
    "no steps": (lambda b, f: b.pop("steps"), "bundle_format"),
    "a launch without kernarg": (lambda b, f: b["steps"][0]["launches"][0].pop("kernarg"), "bundle_format"),
    "a launch without a block": (lambda b, f: launch(b).pop("block"), "bundle_format"),
    "a launch of two grids": (lambda b, f: launch(b).update(grid=[3, 1]), "bundle_format"),
    "an empty grid": (lambda b, f: launch(b).update(grid=[0, 1, 1]), "bundle_format"),
    "less LDS than none": (lambda b, f: launch(b).update(dynamic_lds=-5000), "bundle_format"),
    "a rank beyond the ranks": (lambda b, f: launch(b).update(rank=9), "bundle_format"),
    "two launches of one rank": (lambda b, f: b["steps"][0]["launches"].append(launch(b)), "bundle_reference"),
    "half a number of bytes": (lambda b, f: b["buffers"][1].update(bytes=12.5), "bundle_format"),
    "a buffer of words": (lambda b, f: b["buffers"].append("r0.x"), "bundle_format"),
    "a buffer without a name": (lambda b, f: b["buffers"][0].pop("name"), "bundle_format"),
    "a fill that is no byte": (lambda b, f: b["buffers"][2].update(init={"fill": 300}), "bundle_format"),
    "no initial content": (lambda b, f: b["buffers"][2].update(init={}), "bundle_format"),
    "a key that nobody reads": (lambda b, f: b["buffers"][2].update(stride=4), "bundle_format"),
    "a step of another kind": (lambda b, f: b["steps"].append({"launch": [{}]}), "bundle_format"),
    "ranks in words": (lambda b, f: b.update(ranks="two"), "bundle_format"),
    "compute units in words": (lambda b, f: b["case"].update(cu="four"), "bundle_format"),
    "half a pointer": (lambda b, f: launch(b)["pointers"].append([0.5, "r0.x", 0]), "bundle_format"),
    "a result outside the folder": (lambda b, f: b["steps"][1]["expect"][0].update(name="../out"), "bundle_format"),
    "a free of nobody's memory": (lambda b, f: b["steps"].append({"free": [{"buffer": "x"}]}), "bundle_reference"),
    "a result twice": (lambda b, f: b["steps"][1]["expect"].append(b["steps"][1]["expect"][0]), "bundle_reference"),
    "a file outside the folder": (lambda b, f: b["buffers"][0]["init"].update(file="data/../x.bin"), "bundle_format"),
    "a buffer that cannot be read": (lambda b, f: unreadable(f / b["buffers"][0]["init"]["file"]), "bundle_file"),
    "one bit of a buffer": (lambda b, f: flip(f / b["buffers"][0]["init"]["file"]), "bundle_file"),
    "one bit of the code": (lambda b, f: flip(f / launch(b)["code"]), "bundle_file"),
    "a pointer outside": (lambda b, f: b["steps"][0]["launches"][0]["pointers"].append([4096, "r0.x", 0]),
    "bundle_reference"),
    "an expectation past the end": (lambda b, f: b["steps"][1]["expect"][0].update(offset=99999), "bundle_reference"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "code"), SPOILED.values(), ids=SPOILED)
def test_a_bundle_that_is_not_whole_is_refused_by_name(tmp_path: Path, change, code: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Problem) as caught:
        Bundle.read(spoil(own_bundle.write(tmp_path / "bundle"), change))
    assert caught.value.code == code and caught.value.exit_code == 2


@pytest.mark.parametrize("left", ["launches", "expect", ""], ids=["only launches", "only expectations", "neither"])
def test_a_bundle_that_compares_nothing_is_no_pass(tmp_path: Path, left: str) -> None:
    folder = own_bundle.write(tmp_path / "bundle")
    spoil(folder, lambda b, f: b.update(steps=[s for s in b["steps"] if left in s]))
    for judge in (lambda: own(folder, "order", None), lambda: check(folder, "order", 1)):
        with pytest.raises(Problem) as caught:
            judge()
        assert caught.value.code == "bundle_empty" and caught.value.exit_code == Exit.NO_EVIDENCE


@pytest.mark.parametrize("change", [lambda b, f: b["buffers"][1].update(bytes=1 << 47),
                                    lambda b, f: launch(b).update(grid=[1 << 20, 64, 64])],
                         ids=["a buffer", "a grid"])  # fmt: skip
def test_what_no_memory_can_hold_is_refused_before_it_is_tried(tmp_path: Path, change) -> None:  # type: ignore[no-untyped-def]
    folder = spoil(own_bundle.write(tmp_path / "bundle"), change)
    with pytest.raises(Problem) as caught:
        own(folder, "order", None)
    assert caught.value.code == "lane_memory" and caught.value.exit_code == Exit.PRECONDITION


@pytest.mark.parametrize(("at", "stop"), [(0, "fault in ours"), (1, "")], ids=["before the launch", "after it"])
@pytest.mark.parametrize("overlap", [False, True], ids=["steps", "overlap"])
def test_memory_that_the_host_gives_back_may_not_be_touched_by_a_later_launch(
    tmp_path: Path, at: int, stop: str, overlap: bool
) -> None:
    folder = own_bundle.write(tmp_path / "bundle")
    spoil(folder, lambda b, f: b["steps"].insert(at, {"free": [{"buffer": "r1.x"}]}))
    run = Executor(Bundle.read(folder)).run(overlap=overlap)
    assert run.stop.startswith(stop) and bool(run.stop) == bool(stop)
    assert {f.kind for f in run.findings} == ({"freed"} if stop else set())


def test_kernel_arguments_of_another_length_are_refused(tmp_path: Path) -> None:
    folder = own_bundle.write(tmp_path / "bundle")
    spoil(folder, lambda b, f: launch(b).update(kernarg=launch(b)["kernarg"] + "00" * 8))
    with pytest.raises(Problem) as caught:
        own(folder, "order", None)
    assert caught.value.code == "kernarg"


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"\xff', b"[1]"], ids=["too deep", "no UTF-8", "no object"])
def test_a_bundle_json_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bundle.json").write_bytes(content)
    with pytest.raises(Problem) as caught:
        Bundle.read(tmp_path)
    assert caught.value.code == "bundle_format"


def test_a_check_without_a_schedule_is_refused(bundle: Path) -> None:
    assert command("check", str(bundle), "--schedules", "", expect=2)["findings"][0]["code"] == "schedule"  # type: ignore[index]


def test_a_folder_without_a_bundle_and_a_torn_one_are_refused(tmp_path: Path) -> None:
    assert command("run", str(tmp_path), expect=2)["findings"][0]["code"] == "bundle_missing"  # type: ignore[index]
    (tmp_path / "bundle.json").write_text("{")
    assert command("check", str(tmp_path), expect=2)["findings"][0]["code"] == "bundle_format"  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "code"), [({"flags": 0x4C}, "wrong_arch"), ({"undefined": ("f",)}, "undefined_symbol")]
)
def test_a_bundle_with_foreign_code_is_refused(tmp_path: Path, change: dict[str, object], code: str) -> None:
    folder = own_bundle.write(tmp_path / "bundle", **change)  # type: ignore[arg-type]
    assert command("run", str(folder), expect=2)["findings"][0]["code"] == code  # type: ignore[index]


def test_capture_without_flydsl_says_so_and_an_unknown_case_lists_them(tmp_path: Path) -> None:
    unknown = command("capture", "--flydsl", str(tmp_path), "--case", "nonsense", expect=2)
    assert "micro" in unknown["findings"][0]["why"]  # type: ignore[index]
    (tmp_path / "file").touch()
    words = ("capture", "--flydsl", str(tmp_path), "--case", "micro", "--out", str(tmp_path / "file"))
    assert command(*words, expect=2)["findings"][0]["code"] == "out_folder"  # type: ignore[index]
    absent = command(
        "capture",
        "--flydsl",
        str(tmp_path),
        "--case",
        "micro",
        "--out",
        str(tmp_path / "o"),
        "--python",
        "/nowhere/python",
        expect=4,
    )
    assert absent["findings"][0]["code"] == "no_flydsl"  # type: ignore[index]
