"""The user's file and the workspace's: what counts without trust, with trust, and never."""

import os
import re
from unittest.mock import Mock

import pytest

from dg_lsp import settings_files
from dg_lsp.context.exclusion import Exclusion, ExclusionReason
from dg_lsp.settings import MAX_NAMED, PrivacySettings, Settings, parse_settings
from dg_lsp.settings_files import MAX_BYTES, with_workspace_file, workspace_file

EVERYTHING = """
[completion]
max_tokens = 8
[rewrite]
model = "large.gguf"
strength = 0.3
preview = false
[context]
enabled = "always"
[privacy]
exclude_secrets = false
exclude_patterns = ["*.sql", "!private/"]
exclude_languages = ["markdown"]
trusted_folders = ["/"]
audit_log = "log"
[model]
name = "mine.gguf"
threads = 1
[model.sampler.dg-mini]
canvas_length = 16
[remote]
url = "http://127.0.0.1:1"
key_source = "AWS_SECRET_ACCESS_KEY"
[daemon]
use = "start"
"""
"""A folder's file with keys of all groups."""
INCOMPLETE = PrivacySettings(is_incomplete=True)
NEVER = "daemon.use, model.sampler, privacy.audit_log, privacy.trusted_folders, remote.key_source, remote.url"


def settings_of(**groups):
    return parse_settings(groups)


@pytest.fixture
def file(tmp_path):
    """`file(text)` writes the file of the workspace."""

    def write(text):
        path = tmp_path / "dg-lsp.toml"
        path.write_text(text)
        return path

    return write


def ignored(message):
    """The keys that a message names, sorted."""
    [keys] = re.findall(r": ignored (.*?), (?:because|which)", message)
    return ", ".join(sorted(keys.split(", ")))


def test_a_folder_changes_how_code_is_completed_and_excludes_more(file):
    user = settings_of(privacy={"exclude_patterns": ["private/"]})
    settings, (untrusted, forbidden) = with_workspace_file(user, file(EVERYTHING).parent, ())
    assert settings == settings_of(
        completion={"max_tokens": 8},
        rewrite={"strength": 0.3},
        privacy={"exclude_patterns": ["private/", "*.sql"], "exclude_languages": ["markdown"]},
    )
    assert ignored(untrusted) == (
        "context.enabled, model.name, model.threads,"
        " privacy.exclude_patterns, privacy.exclude_secrets, rewrite.model, rewrite.preview"
    )
    assert ignored(forbidden) == NEVER
    again = settings_of(privacy={"exclude_patterns": ["*.sql", "!a.sql"]})
    settings, _ = with_workspace_file(again, file('[privacy]\nexclude_patterns = ["*.sql"]\n').parent, ())
    assert Exclusion(settings.privacy).path_reason("a.sql") is ExclusionReason.PATTERN


def test_a_pattern_with_a_slash_is_also_relative_to_the_folder_of_its_file(tmp_path):
    folder = tmp_path / "[a] b"
    folder.mkdir()
    patterns = '[privacy]\nexclude_patterns = ["src/*.sql", "/secret/", "*.log", "!/a/b"]\n'
    (folder / "dg-lsp.toml").write_text(patterns)
    settings, _ = with_workspace_file(Settings(), folder, ())
    escaped = folder.as_posix().replace("[", "\\[")
    assert settings.privacy.exclude_patterns == (
        "src/*.sql", f"{escaped}/src/*.sql", "/secret/", f"{escaped}/secret/", "*.log",
    )  # fmt: skip
    rules = Exclusion(settings.privacy)
    paths = [f"{folder}/{name}".lstrip("/") for name in ("src/a.sql", "secret/x.py", "x/src/a.sql")]
    assert [rules.path_reason(path, (folder.parent,)) for path in paths] == [*[ExclusionReason.PATTERN] * 2, None]
    link = tmp_path / "link"
    link.symlink_to(folder)
    settings, _ = with_workspace_file(Settings(), link, ())
    assert {f"{link}/secret/", f"{escaped}/secret/"} < set(settings.privacy.exclude_patterns)


def test_a_folder_that_the_user_trusts_also_chooses_models_and_excludes_less(file, tmp_path):
    user = settings_of(privacy={"trusted_folders": [str(tmp_path.parent)], "exclude_patterns": ["private/"]})
    settings, [forbidden] = with_workspace_file(user, file(EVERYTHING).parent, ())
    assert (settings.model.name, settings.rewrite.model) == (str(tmp_path / "mine.gguf"), str(tmp_path / "large.gguf"))
    assert not settings.privacy.exclude_secrets
    assert settings.privacy.exclude_patterns == ("*.sql", "!private/")
    assert (settings.remote, settings.daemon) == (user.remote, user.daemon)
    assert settings.privacy.trusted_folders == user.privacy.trusted_folders
    assert ignored(forbidden) == NEVER


@pytest.mark.parametrize(
    ("trusted", "opened"),
    [
        pytest.param("{}/cod", "code", id="a neighbour whose name begins as its name"),
        pytest.param("{}/links", "links/code", id="a link to it"),
        *(pytest.param(path, "code", id=f"relative path {path!r}") for path in (".", "", "../code")),
    ],
)
def test_a_folder_is_not_trusted_by(tmp_path, monkeypatch, trusted, opened):
    """The working directory is that of the folder which the user has just opened: a relative path could be any."""
    for name in ("code", "links"):
        (tmp_path / name).mkdir()
    (tmp_path / "code/dg-lsp.toml").write_text("[model]\nthreads = 1\n")
    (tmp_path / "links/code").symlink_to(tmp_path / "code")
    monkeypatch.chdir(tmp_path / "code")
    user = settings_of(privacy={"trusted_folders": [trusted.format(tmp_path)]})
    assert with_workspace_file(user, tmp_path / opened, ())[0] == user


@pytest.mark.parametrize("is_spelled_with_link", [True, False])
def test_a_folder_in_a_home_that_is_a_link_can_be_trusted(tmp_path, monkeypatch, is_spelled_with_link):
    (tmp_path / "disk/ada/code").mkdir(parents=True)
    (tmp_path / "ada").symlink_to("disk/ada")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "disk/ada/code/dg-lsp.toml").write_text("[model]\nthreads = 1\n")
    path = tmp_path / ("ada" if is_spelled_with_link else "disk/ada") / "code/dg-lsp.toml"
    user = settings_of(privacy={"trusted_folders": ["~/code"]})
    for home, num_threads in (("ada", 1), ("disk/ada", 1), ("circle", user.model.threads)):
        monkeypatch.setenv("HOME", str(tmp_path / home))
        assert with_workspace_file(user, path.parent, ())[0].model.threads == num_threads


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="a system without owners of files")
def test_a_file_that_other_users_can_change_is_ignored(file, tmp_path, monkeypatch):
    path = file("no TOML")
    path.chmod(0o666)
    settings, [message] = with_workspace_file(Settings(), path.parent, ())
    assert (settings, "other users can change it" in message) == (Settings(), True)
    path.write_text("[completion]\nmax_tokens = 8\n")
    path.chmod(0o644)
    if os.getuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    assert with_workspace_file(Settings(), path.parent, ())[0] == Settings()
    trusting = settings_of(privacy={"trusted_folders": [str(tmp_path)]})
    assert with_workspace_file(trusting, path.parent, ())[0].completion.max_tokens == 8


def test_the_users_file_may_set_everything(user_settings):
    path = user_settings(EVERYTHING)
    settings, messages = settings_files.user_settings(())
    assert messages == ()
    assert (settings.remote.url, settings.privacy.audit_log) == ("http://127.0.0.1:1", str(path.parent / "log"))
    assert settings.model.name == str(path.parent / "mine.gguf")
    assert settings.model.sampler_of("dg-mini").canvas_length == 16
    assert settings.for_rewrites.remote.model == "large.gguf", "the name of a model of the server"
    assert workspace_file(path.parent) is None, "the user's file is no workspace's"
    path.chmod(0o666)
    settings, [message] = settings_files.user_settings(())
    assert "other users" in message
    assert settings == Settings(privacy=INCOMPLETE)


def test_a_users_file_that_cannot_be_opened_is_reported_and_ignored(user_settings, monkeypatch):
    path = user_settings("")
    path.unlink()
    path.symlink_to("gone.toml")
    settings, [broken_link] = settings_files.user_settings(())
    assert settings == Settings(privacy=INCOMPLETE)
    monkeypatch.setattr("pathlib.Path.is_file", Mock(side_effect=PermissionError(13, "Permission denied", str(path))))
    settings, [unreadable_folder] = settings_files.user_settings(())
    assert settings == Settings(privacy=INCOMPLETE)
    assert all(f"{path}" in message for message in (broken_link, unreadable_folder))


def test_thousands_of_unknown_keys_are_counted(file, monkeypatch):
    searches = []
    monkeypatch.setattr("difflib.get_close_matches", lambda *_: searches.append(1) or [])
    path = file("".join(f"k{number} = 1\n" for number in range(1500)))
    *named, last = with_workspace_file(Settings(), path.parent, ())[1]
    assert len(named) == len(searches) == MAX_NAMED
    assert last == f"{path}: {1500 - MAX_NAMED} more unknown settings are ignored"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"model = ", id="no TOML"),
        pytest.param(b"\xff\xfe", id="no UTF-8"),
        pytest.param(b"#" * (MAX_BYTES + 1), id="long"),
        pytest.param(b"a = " + b"[" * (MAX_BYTES // 2), id="deep"),
        pytest.param(b"[completion]\nmax_tokens = " + b"1" * 5000, id="a number of thousands of digits"),
        pytest.param(b"a." * (MAX_BYTES // 2 - 1) + b"a", id="a key of thousands of parts"),
        pytest.param(b"a." * 2000 + b"a=1", id="thousands of tables"),
        pytest.param("gone.toml", id="a broken link"),
        pytest.param("pipe", id="a link to a pipe"),
    ],
)
def test_a_file_that_cannot_be_read_is_reported_and_ignored(tmp_path, content):
    path = tmp_path / "dg-lsp.toml"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to(content)
    settings, [message] = with_workspace_file(Settings(), path.parent, ())
    assert "dg-lsp.toml" in message
    assert message.endswith(" is ignored)")
    assert settings == Settings(privacy=INCOMPLETE)


def test_a_workspace_uses_the_nearest_settings_file(tmp_path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    assert with_workspace_file(Settings(), folder, ()) == (Settings(), ())
    assert with_workspace_file(Settings(), None, ()) == (Settings(), ())
    (tmp_path / "dg-lsp.toml").write_text("\ufeff[completion]\nmax_tokens = 7\n")  # as some editors of Windows do
    settings, errors = with_workspace_file(Settings(), folder, ())
    assert (settings.model.name, settings.completion.max_tokens, errors) == ("auto", 7, ())


def test_the_trust_of_the_editor_counts_in_its_folder_only(file, tmp_path):
    folder = tmp_path / "a\nb"
    folder.mkdir()
    path = file("[model]\nname = 'mine.gguf'\n[rewrite]\nmodel = 'large.gguf'\n")
    settings, [message] = with_workspace_file(Settings(), folder, (), editor_trusts=True)
    assert settings == Settings()
    assert "ignored model.name, rewrite.model" in message
    path.rename(folder / "dg-lsp.toml")
    settings, messages = with_workspace_file(Settings(), folder, (), editor_trusts=True)
    assert (settings.model.name, messages) == (str(folder / "mine.gguf"), ())
    assert settings.rewrite.model == str(folder / "large.gguf")
    settings, [message] = with_workspace_file(Settings(), folder, (), editor_trusts=False)
    assert settings == Settings()
    assert "the editor does not trust this folder" in message
