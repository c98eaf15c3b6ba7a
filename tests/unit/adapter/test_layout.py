"""The weight layouts: golden hashes of FlyDSL's own functions, inverses, idempotence, refusals."""

from __future__ import annotations

import gc
import hashlib
import math
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megamoe_atom import layout, layout_gpu
from megamoe_atom.problem import Exit, Problem


def counting(*shape: int) -> torch.Tensor:
    """The test input of the golden table: arange modulo 251 as bytes."""
    return (torch.arange(math.prod(shape)) % 251).to(torch.uint8).view(shape)


def sha(t: torch.Tensor) -> str:
    return hashlib.sha256(t.contiguous().numpy().tobytes()).hexdigest()


def w13(t: torch.Tensor) -> torch.Tensor:
    return layout.shuffle_w13(t)


def w13_separated(t: torch.Tensor) -> torch.Tensor:
    return layout.shuffle_w13(t, gate_up=False)


def w13_scale(t: torch.Tensor) -> torch.Tensor:
    return layout.shuffle_w13_scale(t)


def w13_scale_separated(t: torch.Tensor) -> torch.Tensor:
    return layout.shuffle_w13_scale(t, gate_up=False)


def w13_scale_separated_unpadded(t: torch.Tensor) -> torch.Tensor:
    """FlyDSL's shuffle_scale_w4(gate_up=False) leaves the pads out: they come last, after the 32-row blocks of data."""
    return layout.shuffle_w13_scale(t, gate_up=False).flatten()[: t.numel()]


def w2(t: torch.Tensor) -> torch.Tensor:
    return layout.shuffle_w2(t)


def w2_scale(t: torch.Tensor) -> torch.Tensor:
    return layout.shuffle_w2_scale(t)


# FlyDSL 8acf56d's own functions on counting(shape), SHA-256 over the output bytes (pads set to 0).
GOLDEN: list[tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...], str]] = [
    (w13, (1, 32, 64), "0fa11a3c68fd0e7278dd2c52ac5e047b9f5a350fb5c706969875d81cae384da7"),
    (w13, (2, 64, 128), "fb365d6f25c45f7f7be2976615afee8aaabe5d05dd0aab1601b3bf18fbd5d033"),
    (w13, (3, 96, 192), "7782f35579de8e001493130f06b38092cbb61fee06eb20a899bb808338bacb09"),
    (w13, (2, 256, 128), "e17c7e438669dd7388f92202980fdc83d5b5114459fffe71e56704f39c855dc6"),
    (w13_separated, (2, 64, 128), "9537639cdd0ac190eafe4a7c6f1a9da29d461cb50f65d913ada863be897ea603"),
    (w13_scale, (1, 64, 8), "6acb91c72cdd29b64853604a9697aaba7c7325867c50e85a8172f04d810fa73d"),
    (w13_scale, (2, 64, 16), "7deb9a984f21b2f4bf4a2361eb03d09a8848387d7af4f9d84829ad10a5dcef05"),
    (w13_scale, (3, 128, 24), "11faaaf1fc2cfac4f03c146b382fd3325e6b78cb9571db2a0579b4e39f2829ce"),
    (w13_scale, (2, 192, 56), "37515a3149edd89e0f71708103e8d843c352152009afd08d8172111b0588155b"),
    (w13_scale_separated_unpadded, (2, 64, 16), "42dc4849896b4492c3bb8dd8e58b25cc0c4a810a8436f61ed99b3e1c1ba5199b"),
    (w2, (1, 16, 32), "e2678b7e25133cfd63078c0e31581bdb48bbf9bd61e8db52e24aa09180487a39"),
    (w2, (1, 48, 96), "ddf1184fd4aa75c6d6dcec68d9efb2fb626347a9b14c463c44dea1595c23bd0a"),
    (w2, (1, 64, 128), "34e627601b2cd235ca902efe336ef073916fe3f7e0a9f2bfa51ab6f322c3617e"),
    (w2, (2, 32, 64), "ae78628d19182eac14fbf2dd7f6d5f158a6ec8072274e87dd6b3df52254d268b"),
    (w2_scale, (1, 256, 8), "fd1563f094455e92dbdce04ccafe1c3c99265b5f270a689b4fc8d5ee0b9434f6"),
    (w2_scale, (1, 256, 16), "45a9a0e3c71ec35bbcc8d20c063255bca1245a0db02914c14cd92a1718ca109b"),
    (w2_scale, (2, 256, 24), "5159ad16703b979b751b297ceb06fe545a024973b243d9deded16fa50cd811fa"),
    (w13_scale_separated, (3, 256, 96), "cca870bee719c5a5f037a447ba43bb6a2ec46236cbea2eab69f2eb7075a5a04a"),
    (w2_scale, (1, 48, 6), "cae8ffdf51be2f2ae48f55242bd14085cb168af57f19a43af9c0dda12f116b84"),
    (w2_scale, (1, 300, 10), "c3b29e878ed2841ca703f9ee42bacf9c51fd441ebb0885d69ba9b59d10e08b4d"),
]


@pytest.mark.parametrize(("shuffle", "shape", "digest"), GOLDEN, ids=[f"{f.__name__}-{s}" for f, s, _ in GOLDEN])
def test_every_golden_hash_of_flydsl_is_met(
    shuffle: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...], digest: str
) -> None:
    assert sha(shuffle(counting(*shape))) == digest


def random_bytes(seed: int, *shape: int, high: int = 256) -> torch.Tensor:
    return torch.randint(0, high, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


small = st.integers(1, 3)


@settings(max_examples=25, deadline=None)
@given(e=small, rows=small, cols=small, seed=st.integers(0, 99))
def test_every_inverse_undoes_its_layout_for_any_legal_shape(e: int, rows: int, cols: int, seed: int) -> None:
    weights = random_bytes(seed, e, 32 * rows, 64 * cols)
    assert torch.equal(layout.unshuffle_w13(layout.shuffle_w13(weights)), weights)
    plain = random_bytes(seed, e, 16 * rows, 32 * cols)
    assert torch.equal(layout.unshuffle_w13(layout.shuffle_w13(plain, gate_up=False), gate_up=False), plain)
    assert torch.equal(layout.unshuffle_w2(layout.shuffle_w2(plain)), plain)
    scales = random_bytes(seed, e, 32 * rows, 8 * cols)
    assert torch.equal(layout.unshuffle_w13_scale(layout.shuffle_w13_scale(scales)), scales)
    padded = layout.shuffle_w13_scale(scales, gate_up=False)
    assert torch.equal(layout.unshuffle_w13_scale(padded, gate_up=False, shape=tuple(scales.shape)), scales)
    ragged = random_bytes(seed, e, 5 * rows, 3 * cols)
    assert torch.equal(layout.unshuffle_w2_scale(layout.shuffle_w2_scale(ragged), ragged.shape), ragged)


@settings(max_examples=25, deadline=None)
@given(e=small, rows=small, cols=small)
def test_a_layout_only_moves_bytes_and_writes_zero_pads(e: int, rows: int, cols: int) -> None:
    weights = random_bytes(rows, e, 32 * rows, 64 * cols)
    assert torch.equal(layout.shuffle_w13(weights).flatten().sort()[0], weights.flatten().sort()[0])
    ones = torch.ones((e, 7 * rows, 3 * cols), dtype=torch.uint8)
    assert int(layout.shuffle_w2_scale(ones).sum()) == ones.numel()


def raw_layer(e: int = 3, h: int = 256, i: int = 256, seed: int = 1) -> list[torch.Tensor]:
    return [
        random_bytes(seed, e, 2 * i, h // 2),
        random_bytes(seed + 1, e, 2 * i, h // 32, high=255),
        random_bytes(seed + 2, e, h, i // 2),
        random_bytes(seed + 3, e, h, i // 32, high=255),
    ]


def parts(layer: layout.ConvertedLayer) -> list[torch.Tensor]:
    return [layer.w13, layer.w13_scale, layer.w2, layer.w2_scale]


@pytest.mark.parametrize("gate_up", [True, False])
@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_in_place_gives_the_same_bytes_in_the_same_memory(gate_up: bool, chunk: int) -> None:
    raw = raw_layer()
    expected = layout.convert_layer_tensors(*[t.clone() for t in raw], gate_up=gate_up)
    before = [t.data_ptr() for t in raw]
    got = layout.convert_layer_tensors(*raw, gate_up=gate_up, in_place=True, chunk_experts=chunk)
    assert all(torch.equal(a, b) for a, b in zip(parts(expected), parts(got), strict=True))
    assert [t.data_ptr() for t in parts(got)] == before


def test_a_layer_is_four_flat_byte_tensors_and_converting_it_again_changes_nothing() -> None:
    layer = layout.convert_layer_tensors(*raw_layer())
    assert all(t.ndim == 1 and t.dtype == torch.uint8 for t in parts(layer))
    again = layout.convert_layer_tensors(*parts(layer))
    assert all(a is b for a, b in zip(parts(again), parts(layer), strict=True))
    assert (again.w13_shape, again.w2_shape, again.gate_up) == (layer.w13_shape, layer.w2_shape, layer.gate_up)
    assert len({id(layout.mark_of(t)) for t in parts(layer)}) == 1


def test_tensors_of_two_conversions_are_not_taken_for_one_layer() -> None:
    first, second = (layout.convert_layer_tensors(*raw_layer(seed=s)) for s in (1, 9))
    with pytest.raises(Problem) as caught:
        layout.convert_layer_tensors(first.w13, first.w13_scale, second.w2, second.w2_scale)
    assert caught.value.code == "layout_twice"


def test_a_dropped_layer_gives_its_memory_back_at_once() -> None:
    gc.disable()
    try:
        layer = layout.convert_layer_tensors(*raw_layer())
        alive = [weakref.ref(t) for t in parts(layer)]
        del layer
        assert [ref() for ref in alive] == [None] * 4
    finally:
        gc.enable()


class OnGpu(torch.Tensor):
    """A CPU tensor that claims to be on a GPU, so that the choice of the pass can be tested without one."""

    is_cuda = True


@pytest.fixture
def gpu_pass(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Puts a function in the place of the Triton module's transpose, or makes its import fail (None)."""

    def install(transpose: Any) -> None:
        module = types.ModuleType("megamoe_atom.layout_triton")
        if transpose is not None:
            module.transpose = transpose  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "megamoe_atom.layout_triton", module)

    layout_gpu._proven.cache_clear()
    yield install
    layout_gpu._proven.cache_clear()


def blocks(raw: torch.Tensor, out: torch.Tensor, *, per: int, stride: int, step: int, other: int) -> None:
    """What the Triton kernel does, block by block in numpy's terms: the arguments' meaning, written out."""
    columns = raw.shape[-1]
    rows, words = raw.reshape(-1, columns), out.reshape(-1, 4)
    for block in range(raw.numel() // (32 * columns)):
        row = (block // per) * stride + (block % per) * step
        for k1 in range(columns // 8):
            for kl in range(4):
                for nl in range(16):
                    word = ((block * (columns // 8) + k1) * 4 + kl) * 16 + nl
                    for kp in range(2):
                        for half in range(2):
                            words[word, 2 * kp + half] = rows[row + half * other + nl, 8 * k1 + 4 * kp + kl]


def test_the_gpu_pass_is_called_with_arguments_that_mean_both_scale_layouts(gpu_pass: Callable[[Any], None]) -> None:
    used = []

    def counted(raw: torch.Tensor, out: torch.Tensor, **arguments: int) -> None:
        used.append(tuple(raw.shape))
        blocks(raw, out, **arguments)

    gpu_pass(counted)
    raw = random_bytes(4, 2, 96, 16)
    assert torch.equal(layout.shuffle_w13_scale(raw.as_subclass(OnGpu)), layout.shuffle_w13_scale(raw))
    raw = random_bytes(5, 3, 40, 12)  # with pads
    assert torch.equal(layout.shuffle_w2_scale(raw.as_subclass(OnGpu)), layout.shuffle_w2_scale(raw))
    assert used == [(2, 64, 24), (2, 96, 16), (256, 16)]  # the first is the proof on a small tensor


def wrong(raw: torch.Tensor, out: torch.Tensor, **_arguments: int) -> None:
    out.copy_(raw)


def broken(*_tensors: torch.Tensor, **_arguments: int) -> None:
    raise RuntimeError("no compiler found")


@pytest.mark.parametrize(
    ("transpose", "told"),
    [(wrong, "in the wrong place"), (broken, "no compiler found"), (None, "cannot import name 'transpose'")],
    ids=["wrong bytes", "does not compile", "no Triton"],
)
def test_a_gpu_pass_that_fails_is_not_used_and_the_log_says_why(
    gpu_pass: Callable[[Any], None], caplog: pytest.LogCaptureFixture, transpose: Any, told: str
) -> None:
    gpu_pass(transpose)
    raw = random_bytes(6, 2, 64, 8)
    for _ in range(2):
        assert torch.equal(layout.shuffle_w13_scale(raw.as_subclass(OnGpu)), layout.shuffle_w13_scale(raw))
    assert len(caplog.records) == 1
    assert told in caplog.text


def test_aligned_weights_move_in_words_of_sixteen_bytes() -> None:
    words = layout._words(torch.zeros((2, 1024), dtype=torch.uint8))
    assert (words.element_size(), tuple(words.shape)) == (16, (2, 64, 1))


def test_a_half_converted_layer_and_the_other_form_are_refused() -> None:
    raw = raw_layer()
    layer = layout.convert_layer_tensors(*raw)
    for args, form in ((([layer.w13, *raw[1:]]), True), (parts(layer), False)):
        with pytest.raises(Problem) as caught:
            layout.convert_layer_tensors(*args, gate_up=form)
        assert caught.value.code == "layout_twice"


def test_weights_that_are_not_aligned_to_sixteen_bytes_convert_to_the_same_bytes() -> None:
    aligned = random_bytes(5, 2, 64, 128)
    for shift in (1, 8):
        shifted = torch.empty(aligned.numel() + shift, dtype=torch.uint8)[shift:].view(aligned.shape).copy_(aligned)
        assert torch.equal(layout.shuffle_w13(shifted), layout.shuffle_w13(aligned))
        assert torch.equal(layout.shuffle_w2(shifted), layout.shuffle_w2(aligned))


@pytest.mark.parametrize("in_place", [True, False])
def test_release_empties_the_raw_tensors_and_leaves_the_converted_ones(in_place: bool) -> None:
    raw = raw_layer()
    copies = [t.clone() for t in raw]
    layer = layout.convert_layer_tensors(*raw, in_place=in_place)
    layout.release(*raw)
    assert [(t.numel(), t.dtype) for t in raw] == [(0, torch.uint8)] * 4
    assert torch.equal(layer.w13, layout.shuffle_w13(copies[0]).flatten())
    assert torch.equal(layer.w2_scale, layout.shuffle_w2_scale(copies[3]).flatten())


def broken(name: str) -> tuple[list[torch.Tensor], str]:
    raw = raw_layer()
    if name == "dtype":
        raw[0] = raw[0].view(torch.int8)
        return raw, "layout_dtype"
    if name == "rank":
        raw[2] = raw[2].flatten()
        return raw, "layout_rank"
    if name == "strides":
        raw[0] = raw[0].transpose(1, 2)
        return raw, "layout_strides"
    if name == "empty":
        raw[0] = raw[0][:0]
        return raw, "layout_empty"
    if name == "rows":
        raw[0] = raw[0][:, :40].contiguous()
        return raw, "layout_shape"
    if name == "experts":
        raw[3] = raw[3][:2]
        return raw, "layout_mismatch"
    if name == "device":
        raw[1] = raw[1].to("meta")
        return raw, "layout_device"
    raw[1][1, 2, 3] = 255
    return raw, "layout_nan_scale"


@pytest.mark.parametrize("name", ["dtype", "rank", "strides", "empty", "rows", "experts", "device", "nan"])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_bad_layer_is_refused_before_any_byte_moves(name: str, in_place: bool) -> None:
    raw, code = broken(name)
    before = [None if t.is_meta else t.clone() for t in raw]
    with pytest.raises(Problem) as caught:
        layout.convert_layer_tensors(*raw, in_place=in_place)
    assert caught.value.code == code
    assert caught.value.exit_code == Exit.PRECONDITION
    assert caught.value.reasons[0].fix
    assert all(b is None or torch.equal(a, b) for a, b in zip(raw, before, strict=True))


def test_a_nan_scale_is_named_with_its_place() -> None:
    raw, _ = broken("nan")
    with pytest.raises(Problem, match=r"\(1, 2, 3\)"):
        layout.convert_layer_tensors(*raw)
