import os

import pytest

from dg_lsp.server.workspace_index import GitignoreFiles


@pytest.fixture
def project(tmp_path):
    (tmp_path / "src/inner").mkdir(parents=True)
    (tmp_path / "build").mkdir()
    (tmp_path / ".gitignore").write_text("*.log\nbuild/\n/only_here.py\n")
    (tmp_path / "src/.gitignore").write_text("!keep.log\n")
    return tmp_path


@pytest.fixture
def ignored(project):
    return GitignoreFiles([project.as_uri()])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("main.py", False),
        ("a.log", True),
        ("src/a.log", True),
        ("src/keep.log", False),
        ("src/inner/keep.log", False),
        ("keep.log", True),
        ("build/main.py", True),
        ("only_here.py", True),
        ("src/only_here.py", False),
    ],
)
def test_as_git_says(project, ignored, path, expected):
    assert ignored.has((project / path).as_uri()) is expected


def test_a_changed_file_is_read_again(project, ignored):
    uri = (project / "main.py").as_uri()
    assert not ignored.has(uri)
    file = project / ".gitignore"
    file.write_text("main.py\n")
    os.utime(file, ns=(1, 1))
    assert ignored.has(uri)
    file.unlink()
    assert not ignored.has(uri)


def test_what_is_outside_of_every_folder_is_not_ignored(project, ignored):
    assert not ignored.has((project.parent / "a.log").as_uri())
    assert not ignored.has("untitled:a.log")
    assert not GitignoreFiles(["vscode-vfs://github/a"]).has("file:///a.log")
