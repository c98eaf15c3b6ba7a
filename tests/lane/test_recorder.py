"""What host code does between launches, as the recorder sees it: a kernel of ours on torch tensors, two ranks."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import own_bundle
import pytest
import torch
from assemble import Parts, code_object
from kernel_lane import elf
from kernel_lane.bundle import Bundle
from kernel_lane.capture import upstream
from kernel_lane.capture.hip import Launch
from kernel_lane.capture.recorder import Recorder, Tracked, read_past
from kernel_lane.execute import Executor
from kernel_lane.judge import compare
from megamoe_atom.problem import Problem

IMAGE = code_object(Parts(own_bundle.machine_code(), lds=1024))
KERNEL = elf.read(IMAGE).kernel("ours")
COUNT = own_bundle.BLOCKS * own_bundle.THREADS
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def ranks(recorder: Recorder) -> list[Tensors]:
    """Each rank's memory, made under the recorder's eyes as host code makes it."""
    out = []
    for rank in range(2):
        upstream.here.rank = rank
        with recorder.watch():
            # A clone, since the memory behind from_numpy is numpy's.
            out.append({"x": torch.from_numpy(own_bundle.numbers(rank)).clone(), "in": torch.empty(COUNT),
                        "flag": torch.zeros(1, dtype=torch.int32), "out": torch.empty(COUNT)})  # fmt: skip
    return out


def launch(recorder: Recorder, memory: list[Tensors]) -> None:
    group = []
    for rank, (mine, theirs) in enumerate((memory, memory[::-1])):
        pointers = (mine["x"], theirs["in"], mine["in"], theirs["flag"], mine["flag"], mine["out"])
        kernarg = struct.pack("<6Q", *(t.data_ptr() for t in pointers))
        group.append((rank, Launch(IMAGE, KERNEL, (3, 1, 1), (256, 1, 1), 0, kernarg)))
    recorder.execute(group)


def test_two_launches_with_a_host_write_between_become_a_bundle_that_says_the_same(
    recorder: Recorder, tmp_path: Path
) -> None:
    memory = ranks(recorder)
    launch(recorder, memory)
    for tensors in memory:
        tensors["flag"].zero_()
        tensors["x"].mul_(2)
    launch(recorder, memory)
    for rank, tensors in enumerate(memory):
        want = (torch.from_numpy(own_bundle.expected(rank)) - 1) * 2 + 1
        assert torch.equal(tensors["out"], want)
        recorder.expect(f"rank{rank}", tensors["out"], want.numpy().tobytes(), "float32")
    recorder.save(tmp_path, {"name": "ours"}, 2)
    bundle = Bundle.read(tmp_path)
    assert [next(iter(s)) for s in bundle.steps] == ["launches", "host", "launches", "expect", "expect"]
    run = Executor(bundle).run()
    assert run.stop == "" and compare(bundle, run.results) == []
    # A flag of 4 bytes in a block of 512; numbers that fill their blocks.
    assert {(b["bytes"], b["read_past"]) for b in bundle.buffers} == {(4, 508), (4 * COUNT, 0)}


@pytest.mark.parametrize(
    ("name", "size", "heap", "allowed"),
    [("r0.gm.running", 192, True, 64), ("r1.gm.running", 256, True, 0), ("r0.x", 1024, False, 0),
     ("r0.op.tok_id_to_src", 4096, False, 4), ("r0.op.tok_id_to_src", 100, False, 412),
     ("r1.s1_sti", 512, False, 4 * 32 * 256), ("r1.sti", 513, False, 511)],
)  # fmt: skip
def test_what_may_be_read_past_a_tensor_is_the_rest_of_its_block_or_known_of_the_kernels(
    name: str, size: int, heap: bool, allowed: int
) -> None:
    t = Tracked(np.zeros(size, np.uint8), 0, None, heap)
    t.name = name
    assert read_past(t, 256) == allowed


def test_a_kernel_that_touches_memory_which_the_host_code_let_go_is_stopped_and_the_buffer_named(
    recorder: Recorder, tmp_path: Path
) -> None:
    memory = ranks(recorder)
    launch(recorder, memory)
    kept = memory[1]["x"].data_ptr()
    memory[1]["flag"].zero_()
    memory[0]["flag"].zero_()
    del memory[1]["x"]
    memory[1]["x"] = Pointer(kept)  # type: ignore[assignment]
    with pytest.raises(Problem) as caught:
        launch(recorder, memory)
    assert caught.value.code == "kernel_stopped" and "freed" in str(caught.value)
    assert {f.kind for f in recorder.findings} == {"freed"}
    recorder.expect("rank0", memory[0]["out"], bytes(4 * COUNT), "float32")
    recorder.save(tmp_path, {"name": "ours"}, 2)
    steps = Bundle.read(tmp_path).steps
    (gone,) = [s["free"] for s in steps if "free" in s]
    run = Executor(Bundle.read(tmp_path)).run()
    assert run.stop.startswith("fault in ours")
    assert {(f.kind, f.buffer) for f in run.findings} == {("freed", gone[0]["buffer"])}


class Pointer:
    """An address that outlived its tensor, as in a table of pointers."""

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def test_a_view_keeps_its_memory(recorder: Recorder) -> None:
    memory = ranks(recorder)
    launch(recorder, memory)
    for tensors in memory:
        tensors["flag"].zero_()
        tensors["x"] = tensors["x"].view(3, 256)[:, :]
    launch(recorder, memory)
    assert recorder.findings == []


def test_what_the_host_copies_from_a_kernels_output_is_copied_anew_in_every_run(
    recorder: Recorder, tmp_path: Path
) -> None:
    memory = ranks(recorder)
    launch(recorder, memory)
    with recorder.watch():
        for tensors in memory:
            tensors["flag"].zero_()
            tensors["x"][:256].copy_(tensors["out"][256:512])
    launch(recorder, memory)
    for rank, tensors in enumerate(memory):
        recorder.expect(f"rank{rank}", tensors["out"], tensors["out"].numpy().tobytes(), "float32")
    recorder.save(tmp_path, {"name": "ours"}, 2)
    bundle = Bundle.read(tmp_path)
    assert [next(iter(s)) for s in bundle.steps] == ["launches", "host", "copy", "launches", "expect", "expect"]
    (copy, _) = bundle.steps[2]["copy"]
    assert (copy["offset"], copy["at"], copy["bytes"]) == (0, 1024, 1024)
    for overlap in (False, True):
        assert compare(bundle, Executor(bundle).run(overlap=overlap).results) == []
    # The first launch gives other values: the second must see them through the copy.
    for b in bundle.buffers:
        if "file" in b["init"]:  # x
            b["init"] = {"fill": 0}
    run = Executor(bundle).run()
    for rank in range(2):
        # x is 0, so out is 2 * 0 + 1, and a third of it becomes the peer's second input.
        values = run.results[f"rank{rank}"].view("<f4")
        assert list(values[:256]) == [3.0] * 256 and list(values[256:]) == [1.0] * 512


def test_a_copy_that_the_host_then_changes_stays_what_the_host_wrote(recorder: Recorder, tmp_path: Path) -> None:
    memory = ranks(recorder)
    launch(recorder, memory)
    with recorder.watch():
        for tensors in memory:
            tensors["flag"].zero_()
            tensors["x"].copy_(tensors["out"])
            tensors["x"].add_(1)
    launch(recorder, memory)
    for rank, tensors in enumerate(memory):
        recorder.expect(f"rank{rank}", tensors["out"], tensors["out"].numpy().tobytes(), "float32")
    recorder.save(tmp_path, {"name": "ours"}, 2)
    bundle = Bundle.read(tmp_path)
    assert [next(iter(s)) for s in bundle.steps] == ["launches", "host", "launches", "expect", "expect"]
    assert compare(bundle, Executor(bundle).run().results) == []
