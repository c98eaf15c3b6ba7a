"""The edits as data: counts, inverses, blob ids. These run on made-up sources; test_real_atom.py has the real ones."""

from __future__ import annotations

import subprocess

import pytest
from megamoe.patch.rules import edits_hash, load_rules, load_upstream, rewrite_source, transform
from megamoe_atom.kernel import blob_id
from megamoe_atom.problem import Problem

MOE = '''"""é — text that is not ASCII comes before the sites."""
from atom.utils.forward_context import get_forward_context


class Other:
    def make(self):
        return Mxfp4MoEMethod(a, b)


class FusedMoE:
    def __init__(self):
        self.quant_method = Mxfp4MoEMethod(layer_quant_config, moe)  # ü

    def _online_quant(self):
        self.quant_method = Mxfp4MoEMethod(
            online, self.moe_config
        )
'''
RUNNER = """from atom.model_loader.loader import load_model


class ModelRunner:
    def dummy_execution(self):
        return Sequence([0] * seq_len, block_size=1)

    def warmup_model(self):
        pad = [0] * seq_len
        return [Sequence([0] * seq_len, block_size=self.block_size) for _ in range(2)]
"""
SOURCES = {"atom/model_ops/moe.py": MOE, "atom/model_engine/model_runner.py": RUNNER}


@pytest.mark.parametrize("content", [b"", b"x", b"\r\n" * 100, "é".encode()], ids=["empty", "short", "crlf", "utf8"])
def test_blob_id_is_what_git_hash_object_prints(content: bytes) -> None:
    git = subprocess.run(["git", "hash-object", "--stdin"], input=content, capture_output=True, check=True, timeout=20)
    assert blob_id(content) == git.stdout.decode().strip()


@pytest.mark.parametrize("path", SOURCES)
def test_every_edit_matches_as_often_as_it_says_and_its_inverse_restores_the_bytes(path: str) -> None:
    source = SOURCES[path].encode()
    edited, counts = transform(path, source, load_rules(), undo=False)
    assert [(e.name, n) for e, n in counts] == [(e.name, e.matches) for e, _ in counts]
    compile(edited, path, "exec")
    restored, _ = transform(path, edited, load_rules(), undo=True)
    if path.endswith("moe.py"):  # a site that spans lines is rewritten on one: only the pinned file restores exactly
        assert (
            restored.decode().split()
            == MOE.replace("(\n            online, self.moe_config\n        )", "(online, self.moe_config)").split()
        )
    else:
        assert restored == source


def test_only_the_construction_sites_inside_fused_moe_are_edited() -> None:
    edited = transform("atom/model_ops/moe.py", MOE.encode(), load_rules(), undo=False)[0].decode()
    assert "return Mxfp4MoEMethod(a, b)" in edited
    assert edited.count("mxfp4_moe_method(Mxfp4MoEMethod, ") == 2
    assert "# ü" in edited


def test_only_the_ids_of_warmup_model_are_edited() -> None:
    edited = transform("atom/model_engine/model_runner.py", RUNNER.encode(), load_rules(), undo=False)[0].decode()
    assert "Sequence([0] * seq_len, block_size=1)" in edited
    assert "pad = [0] * seq_len" in edited
    assert edited.count("warmup_token_ids(seq_len, runner=self)") == 1


def test_a_second_pass_finds_no_construction_site() -> None:
    edit = next(e for e in load_rules() if e.name == "moe-construction")
    once, first = rewrite_source(MOE, edit.forward)
    assert first == 2
    twice, second = rewrite_source(once, edit.forward)
    assert (twice, second) == (once, 0)


def test_each_edited_file_is_pinned_and_each_pinned_file_is_edited() -> None:
    assert {e.file for e in load_rules()} == {f.path for f in load_upstream().files}
    for pinned in load_upstream().files:
        assert sorted(map(len, pinned.images)) == [0, 1]
        assert len(set(pinned.images.values())) == 2


def test_edits_pin_the_same_atom_as_the_image() -> None:
    import tomllib

    from megamoe.resources import resource

    pins = tomllib.loads(resource("docker/pins.toml").read_text())
    assert load_upstream().commit == pins["git"]["atom"]["commit"]


COMPILER = '''
class JitFunction:
    def __call__(self, *args):
        allow_disk_cache = use_disk_cache and cache_key not in self._extern_linkage_keys
        if cached_func is None and allow_disk_cache:
            if cached_func is not None and getattr(cached_func, "_link_libs", None):
                cached_func = None
        with lock() as (_lock_result, _cache_writer):
            if _lock_result is not None and not getattr(_lock_result, "_link_libs", None):
                compiled_func = _lock_result
            if _cache_writer and not extern_linked:
                _cache_writer(compiled_func)
        if use_disk_cache or False:
            pass
'''
JIT = "python/flydsl/compiler/jit_function.py"


def test_the_compilers_edit_lifts_four_conditions_and_puts_them_back() -> None:
    rules = load_rules("flydsl_compiler")
    edited, counts = transform(JIT, COMPILER.encode(), rules, undo=False)
    assert [(rule.matches, count) for rule, count in counts] == [(1, 1)] * 4
    text = edited.decode()
    assert "_link_libs" not in text and "extern_linked" not in text and "_extern_linkage_keys" not in text
    assert "use_disk_cache or False" in text  # what only looks alike stays
    compile(text.replace("with lock", "with open"), JIT, "exec")
    assert transform(JIT, edited, rules, undo=True)[0] == COMPILER.encode()


def test_the_compilers_edit_is_made_to_the_commit_of_the_kernels_and_to_no_other_file() -> None:
    compiler, kernels = load_upstream("flydsl_compiler"), load_upstream("flydsl")
    assert (compiler.commit, compiler.repository) == (kernels.commit, kernels.repository)
    assert {r.file for r in load_rules("flydsl_compiler")} == {f.path for f in compiler.files} == {JIT}
    assert compiler.option == "--flydsl-compiler"
    assert not {f.path for f in kernels.files} & {JIT}


def test_bytes_that_are_no_utf8_are_refused_with_their_place() -> None:
    with pytest.raises(Problem, match="byte 2") as caught:
        transform("atom/model_ops/moe.py", b"a=\xff", load_rules(), undo=False)
    assert caught.value.code == "not_utf8"


def test_the_hash_of_the_edits_is_stable_within_a_checkout() -> None:
    assert edits_hash() == edits_hash()
    assert len(edits_hash()) == 64
