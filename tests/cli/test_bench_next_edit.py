"""`dg-lsp bench next-edit`."""

import subprocess

import pytest

TEXTS = ("a = load(1)\nb = 2\nc = load(3)\nd = load(4)\n", "a = read(1)\nb = 2\nc = read(3)\nd = read(4)\n")


@pytest.fixture
def repository(tmp_path):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    folder = tmp_path / "repository"
    folder.mkdir()
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    for text in TEXTS:
        (folder / "code.py").write_text(text)
        for command in (["add", "."], ["commit", "--quiet", "--message", "change"]):
            subprocess.run(["git", *identity, "-C", str(folder), *command], check=True)
    return folder


def test_the_history_of_a_repository_is_measured(dg_lsp, repository):
    outcome = dg_lsp("bench", "next-edit", repository, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["num"] == 2
    assert 0 <= outcome.json["right"] <= outcome.json["shown"] <= 1
    lines = dg_lsp("bench", "next-edit", repository).out.splitlines()
    assert [line.split(" | ")[:2] for line in lines if line.startswith(("| all", "| python"))] == [
        ["| all", "2"],
        ["| python", "2"],
    ]


def test_a_folder_without_such_a_history_is_refused(dg_lsp, repository, tmp_path):
    assert "git cannot read" in dg_lsp("bench", "next-edit", tmp_path).error(2)
    subprocess.run(["git", "-C", str(repository), "reset", "--quiet", "--hard", "HEAD~1"], check=True)
    assert "no commit of" in dg_lsp("bench", "next-edit", repository).error(2)
