import dataclasses
import os
import platform
import subprocess

from dg_lsp import __version__
from dg_lsp.bench import machine
from dg_lsp.bench.machine import Machine


def test_this_machine():
    here = Machine.here(threads=2)
    assert here == Machine.here(threads=2)
    assert here.dg_lsp == __version__
    assert here.python == platform.python_version()
    assert 1 <= here.cores <= (os.cpu_count() or 1)
    assert here.cpu
    assert here.threads == 2


def test_there_and_back():
    here = Machine.here(threads=1)
    assert Machine.parse(dataclasses.asdict(here)) == here


def test_a_person_reads_one_line():
    one = Machine("AMD EPYC", 2, "Linux 6.1 x86_64", "3.12.1", "0.1.0", "0.3.36", "abc123-dirty", 1)
    assert one.line() == (
        "AMD EPYC, 2 cores, 1 thread; Linux 6.1 x86_64; dg-lsp 0.1.0 (abc123-dirty), llama-cpp-python 0.3.36, "
        "Python 3.12.1"
    )
    plain = dataclasses.replace(one, commit=None, llama_cpp_python=None).line()
    assert "()" not in plain
    assert "None" not in plain


def test_an_uncommitted_change_shows(tmp_path):
    def git(*words):
        author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *author, "-C", tmp_path, *words], check=True, capture_output=True)

    assert machine._commit(tmp_path) is None
    git("init")
    assert machine._commit(tmp_path) is None
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "one")
    clean = machine._commit(tmp_path)
    assert len(clean) == 12
    (tmp_path / "a").write_text("2")
    assert machine._commit(tmp_path) == f"{clean}-dirty"


def test_a_machine_that_says_nothing_of_itself(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "gone")
    assert Machine.here(threads=1).cpu
