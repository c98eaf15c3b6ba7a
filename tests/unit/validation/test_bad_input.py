"""What a person gets wrong: each is one clear error with the documented exit code, and names what is at fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer
from megamoe.gate.policy import load_policy
from megamoe.gsm8k import run
from megamoe.gsm8k.run import Request, harness_python, run_gsm8k
from megamoe_atom.problem import Exit, Problem

ROOT = Path(__file__).resolve().parents[3]
VALIDATE = ROOT / "scripts/validate.sh"
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
RULES = {"task": "gsm8k", "metric": "exact_match,flexible-extract", "num_fewshot": 3, "n_required": 5, "floor": 0.5}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with five questions and a policy for them; the interpreter of lm-eval is found, and never started."""
    rows = [{"question": f"{i} + 1?", "answer": f"#### {i + 1}"} for i in range(5)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "p.json").write_text(json.dumps(RULES))
    monkeypatch.setattr(run, "harness_python", lambda: sys.executable)
    return tmp_path


def ask(files: Path, url: str = "http://127.0.0.1:9", **change: Any) -> Problem:
    given = {"dataset": files / "q.jsonl", "out": files / "out", "policy": files / "p.json", **change}
    with pytest.raises(Problem) as caught:
        run_gsm8k(Request(url, **{k: str(v) if isinstance(v, Path) else v for k, v in given.items()}))
    assert caught.value.reasons[0].why and caught.value.reasons[0].fix
    return caught.value


@pytest.mark.parametrize(
    ("fault", "code", "exit_code"),
    [
        ("html", "not_openai", Exit.UNREACHABLE),
        ("401", "unauthorised", Exit.REFUSED),
        ("foreign", "wrong_model", Exit.CHECK_FAILED),
    ],
)
def test_a_server_that_is_not_the_one_is_named(files: Path, fault: str, code: str, exit_code: Exit) -> None:
    problem = ask(files, FakeServer(fault=fault).url, model="demo")
    assert (problem.code, problem.exit_code) == (code, exit_code)
    assert not (files / "out").exists()


def test_unreachable_and_tls_are_told_apart(files: Path) -> None:
    server = FakeServer()
    assert ask(files, server.url.replace("http", "https")).code == "tls"
    server.stop()
    problem = ask(files, server.url)
    assert (problem.code, problem.exit_code) == ("unreachable", Exit.UNREACHABLE)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://h/", "http://key@host:8000", "http://", "http://[::1", "http://h:99999"])
def test_what_is_no_address_is_refused_and_a_key_in_it_is_not_repeated(files: Path, url: str) -> None:
    problem = ask(files, url)
    assert (problem.code, problem.exit_code) == ("url", Exit.REFUSED) and "key@" not in str(problem)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_in_which_nothing_can_be_answered_is_refused(files: Path, seconds: float) -> None:
    problem = ask(files, timeout=seconds)
    assert (problem.code, problem.exit_code) == ("timeout", Exit.REFUSED)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param('{"question": "x", "answer": ', "dataset_line", id="cut"),
        pytest.param('{"question": "x", "answer": "no mark"}', "dataset_line", id="no final answer"),
        pytest.param('{"question": 3, "answer": "#### 3"}', "dataset_line", id="not text"),
        pytest.param('{"question": "1 + 1?", "answer": "#### 2"}', "dataset_duplicate", id="asked twice"),
    ],
)
def test_a_broken_line_of_the_data_set_is_named(files: Path, line: str, code: str) -> None:
    path = files / "q.jsonl"
    path.write_text(path.read_text() + line + "\n")
    problem = ask(files)
    assert (problem.code, problem.exit_code) == (code, Exit.REFUSED) and f"{path}:6:" in str(problem)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param({"limit": 6}, "limit_too_large", id="limit"),
        pytest.param({"num_fewshot": 99}, "fewshot_too_few", id="shots"),
    ],
)
def test_more_than_the_files_hold_is_refused(files: Path, change: dict[str, Any], code: str) -> None:
    problem = ask(files, **change)
    assert (problem.code, problem.exit_code) == (code, Exit.REFUSED)
    assert all(str(asked) in problem.reasons[0].what for asked in change.values())


def test_a_data_set_smaller_than_the_policys_n_is_refused_before_hours_are_spent(files: Path) -> None:
    (files / "p.json").write_text(json.dumps({**RULES, "n_required": 1319}))
    problem = ask(files)
    assert problem.code == "dataset_too_small" and "1319" in str(problem) and " 5" in str(problem)
    # said on purpose, it is not refused: the next thing that fails is the address
    assert ask(files, limit=5).code == "unreachable" and ask(files, further=True).code == "unreachable"


def test_a_policy_key_with_a_typo_names_the_nearest_key(files: Path) -> None:
    (files / "p.json").write_text(json.dumps({**RULES, "max_emtpy_rate": 0.01}))
    assert "max_empty_rate" in str(ask(files))


def test_a_policy_name_with_a_typo_names_the_nearest_policy() -> None:
    with pytest.raises(Problem) as caught:
        load_policy("v4-pro-fussed")
    assert "v4-pro-fused" in caught.value.reasons[0].fix and caught.value.exit_code == Exit.REFUSED


def test_an_output_folder_that_cannot_be_written_is_refused_before_a_question_is_asked(files: Path) -> None:
    (files / "file").write_text("")
    server = FakeServer()
    problem = ask(files, server.url, out=files / "file" / "out")
    assert (problem.code, problem.exit_code) == ("out_not_writable", Exit.REFUSED) and server.asked == 0


def test_a_journal_of_an_unknown_run_is_put_aside(files: Path) -> None:
    (files / "out").mkdir()
    (files / "out/journal.jsonl").write_text('{"doc_id": 0, "text": "#### 1"}\n')
    record = run.open_run(files / "out", "f", None, fresh=False)
    assert record["fingerprint"] == "f" and (files / "out/previous/unreadable/journal.jsonl").exists()


def test_a_laptop_with_the_cli_alone_is_told_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "checkout_root", lambda: None)
    monkeypatch.delenv("MEGAMOE_LM_EVAL_VENV", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Problem) as caught:
        harness_python()
    assert (caught.value.code, caught.value.exit_code) == ("lm_eval_missing", Exit.PRECONDITION)
    words = caught.value.reasons[0].fix.split()
    script = Path(words[words.index("bash") + 1])
    assert script.is_file() and (script.parent / "lm-eval.lock").is_file()


def test_the_place_of_lm_evals_environment_is_one_rule_in_both_places(tmp_path: Path) -> None:
    """The script of an installed package (copied away from the checkout) looks where the CLI looks."""
    package = tmp_path / "lib/python/site-packages/megamoe/validation"
    package.mkdir(parents=True)
    for name in ("setup_lm_eval.sh", "lm-eval.lock"):
        (package / name).write_bytes((ROOT / "scripts/megamoe/validation" / name).read_bytes())
    venv = tmp_path / "cache/megamoe/lm-eval"
    venv.mkdir(parents=True)
    digest = subprocess.run(["sha256sum", str(package / "lm-eval.lock")], capture_output=True, text=True, check=True)
    (venv / ".stamp").write_text(digest.stdout.split()[0] + "\n")
    done = subprocess.run(
        ["bash", str(package / "setup_lm_eval.sh")],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    assert (done.returncode, done.stderr) == (0, "") and str(venv) in done.stdout


def test_a_folder_that_is_no_environment_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = subprocess.run(
        ["bash", str(ROOT / "scripts/setup_lm_eval.sh")],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "MEGAMOE_LM_EVAL_VENV": str(tmp_path)},
    )
    assert done.returncode == 2 and "fix:" in done.stderr and (tmp_path / "mine").read_text() == "precious"


def validate(*argv: str, path: str = PATH) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(VALIDATE), *argv],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PATH": path},
    )


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        pytest.param((), "URL", id="nothing"),
        pytest.param(("http://h:1", "--polcy", "x"), "--polcy", id="unknown option"),
        pytest.param(("http://h:1", "--policy"), "needs a value", id="no value"),
        pytest.param(("http://h:1",), "--dataset is missing", id="no questions"),
    ],
)
def test_validate_refuses_a_wrong_call(argv: tuple[str, ...], word: str) -> None:
    done = validate(*argv)
    assert done.returncode == 2 and word in done.stderr


def test_validate_without_the_cli_says_how_to_get_it() -> None:
    done = validate("http://h:1", "--dataset", "q", path="/usr/bin:/bin")
    assert done.returncode == 4 and "pip install" in done.stderr


def test_validate_does_not_start_when_its_evidence_has_no_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = validate("http://h:1", "--dataset", "q", "--out", str(tmp_path / "file/out"))
    assert done.returncode == 2 and "choose another --out" in done.stderr


def test_validate_of_a_dead_address_ends_with_its_code_and_still_writes_the_report(files: Path) -> None:
    server = FakeServer()
    server.stop()
    out = files / "validation"
    done = validate(
        server.url, "--dataset", str(files / "q.jsonl"), "--policy", str(files / "p.json"), "--out", str(out)
    )
    assert done.returncode == Exit.UNREACHABLE and "does not answer" in done.stdout
    assert {"report.html", "report.json", "report.md", "junit.xml", "smoke.json"} <= {p.name for p in out.iterdir()}
    assert json.loads((out / "report.json").read_text())["status"] == "error"
