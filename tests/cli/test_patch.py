"""`--format patch`: what is printed, is applied by git to the file that was read."""

import subprocess

import pytest

EDITS = {
    "lf": (b"a = 1\nb = x\nc = 3\n", b"a = 1\nb = 2\nc = 3\n"),
    "crlf": (b"a = 1\r\nb = x\r\nc = 3\r\n", b"a = 1\r\nb = 2\r\nc = 3\r\n"),
    "cr": (b"a = 1\rb = x\rc = 3\r", b"a = 1\rb = 2\rc = 3\r"),
    "mixed line ends and a form feed": (b"a = 1\r\n\x0c\nb = x\r\nc = 3\n", b"a = 1\r\n\x0c\nb = 2\r\nc = 3\n"),
    "no final newline": (b"a = 1\nb = x", b"a = 1\nb = 2"),
    "no final newline far below": (b"b = x\n" + b"# a\n" * 9 + b"c", b"b = 2\n" + b"# a\n" * 9 + b"c"),
    "byte order mark": (b"\xef\xbb\xbfb = x\n", b"\xef\xbb\xbfb = 2\n"),
    "not ascii": ("é = '😋'\nb = x\n".encode(), "é = '😋'\nb = 2\n".encode()),
}
NAMES = ["a.py", "größe/é😋.py", "my module.py", 'a "b"\\c.py', "a\tb.py"]


@pytest.fixture
def repository(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


@pytest.fixture
def applied(dg_lsp):
    """`applied("rewrite", "a.py:2", folder=...)`: runs the command; git applies what it prints in the folder."""

    def call(name, *arguments, folder):
        outcome = dg_lsp(name, *arguments, "--format", "patch")
        assert outcome.code == 0, outcome
        subprocess.run(["git", "apply", "-"], cwd=folder, input=outcome.out.encode(), check=True)
        return outcome

    return call


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_git_applies_a_rewrite_whatever_the_line_ends(repository, script, applied, edit):
    old, new = edit
    script.fill = "b = 2"
    path = repository / "a.py"
    path.write_bytes(old)
    head, x, _ = old.partition(b"x")
    outcome = applied("rewrite", f"a.py:{len((head + x).splitlines())}", folder=repository)
    assert path.read_bytes() == new
    assert "scripted: " in outcome.err


@pytest.mark.parametrize("name", NAMES)
def test_git_applies_a_patch_to_a_file_with_an_unusual_name_in_a_folder_of_the_repository(
    repository, script, applied, monkeypatch, name
):
    script.fill = "2"
    folder = repository / "inner"
    path = folder / name
    path.parent.mkdir(parents=True)
    path.write_text("b = \n")
    monkeypatch.chdir(folder)
    applied("fill", f"{name}:1:5", folder=folder)
    assert path.read_text() == "b = 2\n"


def test_git_applies_filled_gaps_outside_of_a_repository(tmp_path, script, applied):
    script.fill = "2"
    path = tmp_path / "a.py"
    path.write_text("a = ...\nb = 1\nc = ...\n")
    applied("fill", "a.py", "--gaps", folder=tmp_path)
    assert path.read_text() == "a = 2\nb = 1\nc = 2\n"


@pytest.mark.parametrize("command", ["fill", "rewrite"])
def test_without_a_result_standard_output_is_empty(repository, script, dg_lsp, command):
    script.fill = ""
    (repository / "a.py").write_text("b = x\n")
    outcome = dg_lsp(command, "a.py:1", "--format", "patch")
    assert (outcome.code, outcome.out) == (1, "")
    assert "the result is empty" in outcome.err
    assert "exclude each other" in dg_lsp(command, "a.py:1", "--format", "patch", "--json").error(2)
