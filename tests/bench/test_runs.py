import dataclasses
import hashlib
import math

import pytest

from dg_lsp.bench.machine import Machine
from dg_lsp.bench.runs import Header, Run, RunFile, file_sha256
from dg_lsp.errors import InputFileError
from dg_lsp.metrics.attempt import Attempt, Shown

TWO_THREADS = Machine("cpu", 2, "Linux", "3.12.1", "0.1.0", "0.3.36", "abc", 2)
MACHINE = Machine("cpu", 2, "Linux", "3.12.1", "0.1.0", "0.3.36", "abc", 1)
HEADER = Header("infill", MACHINE, "dg-mini", "00ff", {"a.jsonl": "11"}, {"length": "none", "ways": ["a", "b"]})


def attempt(site, way="diffusion"):
    ends = (True, None, 5.0, 2, 4, math.nan if site == "nan" else -0.5, None, 5.0, 3.0)
    return Attempt(site, "block", way, "diffusion", "é\n\u2028\ud800", (Shown(5.0, "é"),), *ends)


def test_what_is_added_can_be_read(tmp_path):
    path = tmp_path / "run.jsonl"
    with RunFile(path, HEADER) as file:
        for site in ("a", "b", "nan"):
            file.add(attempt(site))
    run = Run.read(path)
    assert run.header == HEADER
    assert [one.json() for one in run.attempts] == [attempt(site).json() for site in ("a", "b", "nan")]
    assert len(path.read_bytes().splitlines()) == 4


def test_an_attempt_is_on_disk_before_the_next_one(tmp_path):
    path = tmp_path / "run.jsonl"
    file = RunFile(path, HEADER)
    file.add(attempt("a"))
    assert Run.read(path).attempts == (attempt("a"),)
    file.close()


def test_a_run_is_continued(tmp_path):
    path = tmp_path / "run.jsonl"
    with RunFile(path, HEADER) as file:
        file.add(attempt("a"))
    with RunFile(path, HEADER) as file:
        assert file.has("a", "diffusion")
        assert not file.has("a", "autoregressive")
        assert not file.has("b", "diffusion")
        file.add(attempt("a", "autoregressive"))
        assert file.attempts == (attempt("a"), attempt("a", "autoregressive"))
    assert len(Run.read(path).attempts) == 2


def test_every_way_to_tear_the_file_loses_one_line_at_most(tmp_path):
    path = tmp_path / "run.jsonl"
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
        assert [one.site for one in Run.read(path).attempts] == [*"ab"[:num_complete], "c"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        pytest.param({"model_sha256": "01"}, "model_sha256", id="another model"),
        pytest.param({"options": {**HEADER.options, "length": "oracle"}}, "options.length", id="another option"),
        pytest.param({"options": {}}, "options.ways", id="an option less"),
        pytest.param({"data": {"b.jsonl": "11"}}, "data.b.jsonl", id="other data"),
        pytest.param({"machine": TWO_THREADS}, "machine.threads", id="another number of threads"),
    ],
)
def test_another_run_is_refused_and_left_alone(tmp_path, change, name):
    path = tmp_path / "run.jsonl"
    with RunFile(path, HEADER) as file:
        file.add(attempt("a"))
    path.write_bytes(path.read_bytes() + b'{"torn')
    before = path.read_bytes()
    with pytest.raises(InputFileError, match=name) as caught:
        RunFile(path, dataclasses.replace(HEADER, **change))
    assert "--output" in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["notes", "notes\nmore", "{}\n", '{"dg_lsp_run": 2}\n', "[]\n", '{"dg_lsp_run": 1}\n'])
def test_a_file_that_is_no_run_is_left_alone(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(InputFileError, match="no run"):
        RunFile(path, HEADER)
    assert path.read_text() == text


def test_a_line_in_the_middle_that_is_no_attempt_is_named(tmp_path):
    path = tmp_path / "run.jsonl"
    with RunFile(path, HEADER) as file:
        file.add(attempt("a"))
    path.write_bytes(path.read_bytes() + b"{}\n")
    with pytest.raises(InputFileError, match="line 3"):
        Run.read(path)


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RunFile(None, HEADER) as file:
        file.add(attempt("a"))
        assert file.attempts == (attempt("a"),)
    assert not list(tmp_path.iterdir())


def test_files_that_cannot_be_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "gone" / "run.jsonl"):
        with pytest.raises(InputFileError):
            RunFile(path, HEADER)
    with pytest.raises(InputFileError, match="no such file"):
        Run.read(tmp_path / "gone.jsonl")
    with pytest.raises(InputFileError):
        file_sha256(tmp_path)


def test_sha256(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert file_sha256(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()
