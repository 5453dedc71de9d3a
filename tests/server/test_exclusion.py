import os

import pytest

from dg_lsp.server.exclusion import GitignoreFiles


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
def test_files_are_ignored_as_git_ignores_them(project, ignored, path, expected):
    assert ignored.is_ignored((project / path).as_uri()) is expected


def test_a_changed_gitignore_file_is_read_again(project, ignored):
    uri = (project / "main.py").as_uri()
    assert not ignored.is_ignored(uri)
    file = project / ".gitignore"
    file.write_text("main.py\n")
    os.utime(file, ns=(1, 1))
    assert ignored.is_ignored(uri)
    file.unlink()
    assert not ignored.is_ignored(uri)


def test_a_file_outside_of_every_folder_is_not_ignored(project, ignored):
    assert not ignored.is_ignored((project.parent / "a.log").as_uri())
    assert not ignored.is_ignored("untitled:a.log")
    assert not GitignoreFiles(["vscode-vfs://github/a"]).is_ignored("file:///a.log")
