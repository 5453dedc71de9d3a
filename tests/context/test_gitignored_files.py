"""Files that git ignores, as the rules of a workspace exclude them."""

import os
from pathlib import Path, PureWindowsPath

import pytest

from dg_lsp import gitignore
from dg_lsp.context import exclusion as exclusion_module
from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import Exclusion
from dg_lsp.settings import PrivacySettings


@pytest.fixture
def exclusion(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / ".gitignore").write_text("*.log\nbuild/\n/only_here.py\n")
    (tmp_path / "src/.gitignore").write_text("!keep.log\n")
    return Exclusion(PrivacySettings(), [tmp_path.as_uri()])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("main.py", False),
        ("src/a.log", True),
        ("src/inner/keep.log", False),
        ("keep.log", True),
        ("build/main.py", True),
        ("Build/main.py", gitignore.IGNORES_CASE),
        ("only_here.py", True),
        ("src/only_here.py", False),
        ("../a.log", False),
    ],
)
def test_files_are_ignored_as_git_ignores_them(exclusion, tmp_path, path, expected):
    assert exclusion.is_ignored(Path(os.path.normpath(tmp_path / path)).as_uri()) is expected


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [
        ("file:///c%3A/Work", "file:///C:/work/Build/main.py", True),
        ("file:///C:/Work", "file:///c%3A/work/src/A.LOG", True),
        ("file:///C:/Work", "file:///D:/Work/a.log", False),
        ("file:///C:/Work", "file:///C:a.log", False),
        ("file://server/Share", "file://SERVER/share/a.log", True),
        ("file://server/share", "file://other/share/a.log", False),
        ("file:///C:/Work", "file:///C:/Work/main.py", False),
    ],
)
def test_files_are_ignored_on_windows(root, path, expected, monkeypatch):
    """With Windows' paths, and with one .gitignore file in each folder of a workspace."""
    monkeypatch.setattr(Exclusion, "flavour", PureWindowsPath)
    monkeypatch.setattr(gitignore, "IGNORES_CASE", True)
    patterns = gitignore.compiled(("*.log", "build/"))
    monkeypatch.setattr(Exclusion, "_patterns", lambda *_: patterns)
    monkeypatch.setattr(exclusion_module, "repository_around", lambda _: None)
    assert Exclusion(PrivacySettings(), [root]).is_ignored(path) is expected


@pytest.mark.parametrize(("number", "expected"), [(30_000, False), (2000, True), (200, False)])
def test_a_path_of_many_folders_is_not_matched(number, expected):
    """The path of 60,000 characters is of no file of this machine; one of 256 folders would take quadratic time."""
    settings = PrivacySettings(exclude_secrets=False, exclude_gitignored=True)
    document = Snapshot("file:///" + "a/" * number, "x = 1")
    assert Exclusion(settings, ["file:///"]).is_excluded(document) is expected


def test_a_very_long_gitignore_file_ignores_everything(exclusion, tmp_path):
    lines = "".join(f"x{number}\n" for number in range(100_000))
    (tmp_path / ".gitignore").write_text(lines)
    assert exclusion.is_ignored((tmp_path / "a.py").as_uri())


def test_a_gitignore_file_that_is_a_link_or_a_pipe_is_not_read(exclusion, tmp_path):
    uri, file = (tmp_path / "main.py").as_uri(), tmp_path / ".gitignore"
    file.rename(tmp_path / "patterns")
    (tmp_path / "patterns").write_text("main.py\n")
    file.symlink_to(tmp_path / "patterns")
    assert not exclusion.is_ignored(uri)
    file.unlink()
    os.mkfifo(file)
    assert not exclusion.is_ignored(uri)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Two files, of which git ignores `secret.py` by patterns of the caller; the user has no patterns."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    folder = tmp_path / "repository"
    (folder / "package/inner").mkdir(parents=True)
    (folder / ".git/info").mkdir(parents=True)
    (folder / ".git/HEAD").touch()
    (tmp_path / "home").mkdir()
    return folder


def ignored(repository, *roots):
    """Whether secret.py and main.py are ignored."""
    files = [repository / "package/inner" / name for name in ("secret.py", "main.py")]
    exclusion = Exclusion(PrivacySettings(exclude_gitignored=True), [root.as_uri() for root in roots])
    return [exclusion.is_excluded(Snapshot(path.as_uri(), "x = 1")) for path in files]


@pytest.mark.parametrize("roots", [(), ("package",), ("package/inner",), ("..",), ("package/inner", ".")])
def test_the_repository_around_a_file_decides_whatever_folder_is_opened(roots, repository):
    (repository / ".gitignore").write_text("/package/inner/secret.py\n")
    assert ignored(repository, *(Path(os.path.normpath(repository / root)) for root in roots)) == [True, False]


def test_a_work_tree_has_the_patterns_of_its_repository_and_its_own(repository, tmp_path):
    (repository / ".git/info/exclude").write_text("secret.*\n")
    tree = tmp_path / "tree"
    (tree / "package/inner").mkdir(parents=True)
    (repository / ".git/worktrees/tree").mkdir(parents=True)
    (repository / ".git/worktrees/tree/commondir").write_text("../..\n")
    (tree / ".git").write_text(f"gitdir: {repository}/.git/worktrees/tree\n")
    assert ignored(tree) == [True, False]
    (tree / ".gitignore").write_text("!secret.py\n")
    assert ignored(tree) == [False, False]


CONFIG = "[core]\n\texcludesFile = ~/patterns # mine\n"


@pytest.mark.parametrize(
    ("files", "is_ignored"),
    [
        pytest.param({}, False, id="no patterns"),
        pytest.param({"repository/.git/info/exclude": "secret.*\n"}, True, id="the repository's own"),
        pytest.param({"home/.config/git/ignore": "secret.py\n"}, True, id="the user's"),
        pytest.param({"home/.gitconfig": CONFIG, "home/patterns": "secret.py\n"}, True, id="in a file of the user"),
        pytest.param({".git/HEAD": "", ".gitignore": "*\n"}, False, id="those of an outer repository"),
        pytest.param({"repository/.gitignore": "\ufeffsecret.py\n"}, True, id="a byte order mark"),
        pytest.param({"repository/.gitignore": "a\u2028b\nsecret.py"}, True, id="a line separator, no line end"),
        pytest.param({"repository/.gitignore": "# \x85secret\r\nsecret.py\r\n"}, True, id="CRLF"),
    ],
)
def test_the_patterns_that_git_reads_count(files, is_ignored, repository, tmp_path):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    assert ignored(repository) == [is_ignored, False]
