import dataclasses
import hashlib
import os
import platform
import subprocess

import pytest

from dg_lsp import __version__
from dg_lsp.bench import runs
from dg_lsp.bench.runs import Machine, Run, RunFile, RunHeader, file_sha256
from dg_lsp.errors import InputFileError

MACHINE = Machine("cpu", 2, "Linux", "3.12.1", "0.1.0", "0.3.36", "abc", 1)
HEADER = RunHeader("infill", MACHINE, "dg-mini", "00ff", {"a.jsonl": "11"}, {"length": "none", "decoders": ["a", "b"]})


@pytest.fixture
def attempt(make_attempt):
    def make(case, contender="canvas"):
        return make_attempt(case, contender, (5.0, "é"), reference="é\n\u2028\ud800", confidence=None)

    return make


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def test_each_attempt_is_on_disk_immediately(path, attempt):
    with RunFile(path, HEADER) as file:
        for number, case in enumerate("abc", 1):
            file.add(attempt(case))
            assert len(Run.read(path).attempts) == number
    assert Run.read(path) == Run(HEADER, tuple(map(attempt, "abc")))


def test_a_run_is_resumed(path, attempt):
    with RunFile(path, HEADER) as file:
        file.add(attempt("a"))
    with RunFile(path, HEADER) as file:
        assert (file.has("a", "canvas"), file.has("a", "causal"), file.has("b", "canvas")) == (True, False, False)
        file.add(attempt("a", "causal"))
        assert file.attempts == (attempt("a"), attempt("a", "causal"))
    assert len(Run.read(path).attempts) == 2


def test_a_truncated_file_loses_at_most_one_attempt(path, attempt):
    with RunFile(path, HEADER) as file:
        file.add(attempt("a"))
        file.add(attempt("b"))
    whole = path.read_bytes()
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    for size in {0, 1, 40, *(end + more for end in ends for more in (-40, -1, 0, 1))}:
        path.write_bytes(whole[:size])
        num_complete = max(0, whole[:size].count(b"\n") - 1)
        with RunFile(path, HEADER) as file:
            assert len(file.attempts) == num_complete
            file.add(attempt("c"))
        assert [one.case for one in Run.read(path).attempts] == [*"ab"[:num_complete], "c"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        pytest.param({"model_sha256": "01"}, "model_sha256", id="another model"),
        pytest.param({"options": {**HEADER.options, "length": "oracle"}}, "options.length", id="another option"),
        pytest.param({"options": {}}, "options.decoders", id="a missing option"),
        pytest.param({"data": {"b.jsonl": "11"}}, "data.b.jsonl", id="other data"),
        pytest.param({"machine": dataclasses.replace(MACHINE, threads=2)}, "machine.threads", id="other threads"),
    ],
)
def test_a_different_run_is_refused_and_unchanged(path, attempt, change, name):
    with RunFile(path, HEADER) as file:
        file.add(attempt("a"))
    path.write_bytes(path.read_bytes() + b'{"torn')
    before = path.read_bytes()
    with pytest.raises(InputFileError, match=name) as caught:
        RunFile(path, dataclasses.replace(HEADER, **change))
    assert "--output" in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["notes", "notes\nmore", "{}\n", '{"dg_lsp_run": 1}\n', "[]\n", '{"dg_lsp_run": 2}\n'])
def test_a_file_that_is_not_a_run_is_refused_and_unchanged(path, text):
    path.write_text(text)
    with pytest.raises(InputFileError, match="not a run"):
        RunFile(path, HEADER)
    assert path.read_text() == text


def test_missing_and_unwritable_files_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "gone" / "run.jsonl"):
        with pytest.raises(InputFileError):
            RunFile(path, HEADER)
    with pytest.raises(InputFileError, match="no such file"):
        Run.read(tmp_path / "gone.jsonl")
    with pytest.raises(InputFileError):
        file_sha256(tmp_path)
    (tmp_path / "a").write_bytes(b"abc")
    assert file_sha256(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()


def test_machine_describes_this_machine(monkeypatch, tmp_path):
    here = Machine.here(threads=2)
    assert here == Machine.here(threads=2)
    assert (here.dg_lsp, here.python, here.threads) == (__version__, platform.python_version(), 2)
    assert 1 <= here.cores <= (os.cpu_count() or 1)
    monkeypatch.setattr(runs, "_CPU_INFO", tmp_path / "gone")
    assert Machine.here(threads=1).cpu


def test_the_commit_shows_uncommitted_changes(tmp_path):
    def git(*words):
        author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *author, "-C", tmp_path, *words], check=True, capture_output=True)

    assert runs._commit(tmp_path) is None
    git("init")
    assert runs._commit(tmp_path) is None
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "one")
    clean = runs._commit(tmp_path)
    assert len(clean) == 12
    (tmp_path / "a").write_text("2")
    assert runs._commit(tmp_path) == f"{clean}-dirty"
