from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from hostile import SECRETS

from dg_lsp.context import exclusion
from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import (
    MASK,
    Exclusion,
    ExclusionReason,
    is_binary,
    local_path,
    mask_secrets,
    path_of,
)
from dg_lsp.errors import SettingsError
from dg_lsp.settings import PrivacySettings, parse_settings

RULES = Exclusion(PrivacySettings())


def reason_of(uri, text="x = 1\n", language="python", rules=RULES):
    return rules.exclusion_reason(Snapshot(uri, text, language))


@pytest.mark.parametrize("name", SECRETS)
def test_files_with_secrets_are_excluded_in_any_spelling(name):
    assert reason_of(f"file:///project/{name.replace('#', '%23')}") is ExclusionReason.SECRETS


@pytest.mark.parametrize("path", ["a/" * 2100, "%25" * 10_000, "secret" * 50])
def test_a_path_that_no_file_has_is_excluded(path):
    assert reason_of(f"file:///{path}x") is ExclusionReason.SECRETS


@pytest.mark.timeout(60)  # quadratic time would take hours
@pytest.mark.parametrize(
    "fragment", ["-----BEGIN PRIVATE KEY-----!\n", "eyJ-", "-----BEGIN ", "aws_secret_access_key = ", "://a:", "/", "-"]
)
def test_hostile_text_is_masked_in_linear_time(fragment):
    assert mask_secrets(fragment * 50_000 + "+" * 300_000)


@pytest.mark.parametrize(
    "name",
    ["main.py", "environment.py", "keys.py", "key/main.py", ".env.example", "id_rsa.pub", "ID_RSA.PUB",
     "config.json", "monkey.js", "credentials.py", "secrets.py", "env/main.py", "token/lexer.py", "tokens.py",
     "credentials/main.py", "kubeconfig/kubeconfig.go", "order_history.py", "history/main.py", "copy.py",
     "vault.py", "secrets.example.yml", "wp-config-sample.php", "keys_test.go", "test_keys.py", "%23main.py%23",
     "main (copy).py", "settings.local.json", ".main.py.swp", "password.tsx", "under_rsa.c"],
)  # fmt: skip
def test_files_with_similar_names_are_not_excluded(name):
    assert reason_of(f"file:///project/{name}") is None


def test_a_link_to_a_file_with_secrets_is_excluded(tmp_path):
    (tmp_path / ".env").write_text("KEY=1\n")
    (tmp_path / "config.py").symlink_to(tmp_path / ".env")
    (tmp_path / "folder").symlink_to(tmp_path)
    no_utf8 = b"a\xff.py".decode("utf-8", "surrogateescape")
    (tmp_path / no_utf8).symlink_to(tmp_path / ".env")
    for name in ("config.py", "folder/config.py", no_utf8):
        assert reason_of((tmp_path / name).as_uri()) is ExclusionReason.SECRETS
    rules = Exclusion(PrivacySettings(exclude_secrets=False, exclude_patterns=("private/",)))
    (tmp_path / "private").mkdir()
    (tmp_path / "public").symlink_to(tmp_path / "private")
    assert reason_of((tmp_path / "public/a.py").as_uri(), rules=rules) is ExclusionReason.PATTERN
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert reason_of((tmp_path / "circle").as_uri()) is None


KEY_LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\n"
KEY = f"-----BEGIN PRIVATE KEY-----\n{KEY_LINE * 5}Zm9v=\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(KEY, id="whole"),
        pytest.param(KEY.replace("PRIVATE KEY", "OPENSSH PRIVATE KEY"), id="OpenSSH"),
        pytest.param(KEY.replace("PRIVATE KEY", "PGP PRIVATE KEY BLOCK"), id="PGP"),
        pytest.param(KEY.replace("\n", "\\n"), id="in one line"),
        pytest.param("".join(f'    "{line}\\n"\n' for line in KEY.splitlines()), id="as strings"),
        pytest.param("".join(KEY.splitlines(keepends=True)[:4]), id="without its end"),
        pytest.param("".join(KEY.splitlines(keepends=True)[2:]), id="without its beginning"),
        pytest.param("".join(KEY.splitlines(keepends=True)[2:5]), id="without both"),
    ],
)
def test_private_keys_are_masked(key):
    masked = mask_secrets(f"before = 1\n{key}\n(after)\n")
    assert masked.startswith("before = 1\n")
    assert masked.endswith("(after)\n")
    assert MASK in masked
    assert "MIIE" not in masked
    assert "Zm9v" not in masked


def test_passwords_in_addresses_are_masked_and_code_is_not():
    assert mask_secrets("postgres://me:hunter2@host/db") == f"postgres://{MASK}@host/db"
    source = Path(exclusion.__file__).read_text(encoding="utf-8")
    assert mask_secrets(source) == source
    code = 'task-sk-ill; "https://host:80/a@b"; skip_live_tests_of_everything(); if s == "-----BEGIN CERTIFICATE-----":'
    assert mask_secrets(code) == code


@pytest.mark.parametrize("host", ["", "[", "[::1", "]x[", "[x]", "\u2100"])
def test_the_path_of_a_uri_decides_whatever_its_host(host):
    assert path_of(f"file://{host}/home/a%20b/.env") == "home/a b/.env"
    assert reason_of(f"file://{host}/home/a%20b/%2Eenv") is ExclusionReason.SECRETS
    assert reason_of(f"file://{host}/home/a.py") is None
    assert reason_of(f"file://{host}/a/.env", rules=Exclusion(PrivacySettings(exclude_secrets=False))) is None


@pytest.mark.parametrize(
    ("uri", "windows", "posix"),
    [
        ("file:///C:/me/a%20b.py", "C:/me/a b.py", "/C:/me/a b.py"),
        ("file:///c%3A/me/a.py", "c:/me/a.py", "/c:/me/a.py"),
        ("file://server/share/a.py", "//server/share/a.py", "/share/a.py"),
        ("file:////server/share/a.py", "//server/share/a.py", "/server/share/a.py"),
        ("file://localhost/C:/a.py", "C:/a.py", "/C:/a.py"),
        ("file:///C:a.py", None, "/C:a.py"),  # relative to the drive's own working directory
        ("file:///a.py", None, "/a.py"),
        ("untitled:C:/a.py", None, None),
        ("vscode-remote://server/share/a.py", None, None),
    ],
)
def test_the_path_of_a_file_on_windows_and_elsewhere(uri, windows, posix):
    paths = [local_path(uri, flavour) for flavour in (PureWindowsPath, PurePosixPath)]
    assert [path and path.as_posix() for path in paths] == [windows, posix]


@pytest.mark.parametrize("pattern", ["src/secret/keys.py", "/src", "src/secret/", "src/secret/**", "src/*/*.py"])
@pytest.mark.parametrize("base", ["workspace", "repository", "link", "nothing"])
def test_a_pattern_with_a_slash_is_relative_to_workspace_folders_and_repositories(pattern, base, tmp_path):
    file, unrelated = tmp_path / "project/src/secret/keys.py", tmp_path / "project/x/src/main.py"
    for path in (file, unrelated):
        path.parent.mkdir(parents=True)
        path.touch()
    (tmp_path / "link").symlink_to(tmp_path / "project")
    if base == "repository":
        (tmp_path / "project/.git").mkdir()
        (tmp_path / "project/.git/HEAD").touch()
    roots = {"workspace": (tmp_path / "project",), "link": (tmp_path / "link",)}.get(base, ())
    rules = Exclusion(PrivacySettings(exclude_patterns=(pattern,)), [root.as_uri() for root in roots])
    assert reason_of(file.as_uri(), rules=rules) is ExclusionReason.PATTERN
    assert reason_of((tmp_path / "link/src/secret/keys.py").as_uri(), rules=rules) is ExclusionReason.PATTERN
    if base != "nothing":  # of a file that is in no project, no folder is known that the pattern is not relative to
        assert reason_of(unrelated.as_uri(), rules=rules) is None


def test_a_pattern_with_a_slash_excludes_files_of_other_machines():
    rules = Exclusion(PrivacySettings(exclude_patterns=("src/*.sql", "!/src/public.sql")))
    for uri in ("client:///src/a.sql", "client:///home/me/project/src/a.sql", "vscode-remote://host/project/src/a.sql"):
        assert reason_of(uri, rules=rules) is ExclusionReason.PATTERN
    assert reason_of("client:///home/me/project/src/public.sql", rules=rules) is None
    assert reason_of("client:///home/me/project/src/a.py", rules=rules) is None
    assert reason_of("untitled:Untitled-1", rules=rules) is None


def test_languages_long_files_and_binary_files_are_excluded(monkeypatch):
    monkeypatch.setattr(exclusion, "MAX_CHARS", 10)
    rules = Exclusion(PrivacySettings(exclude_languages=("markdown",)))
    assert reason_of("file:///a.md", language="markdown", rules=rules) is ExclusionReason.LANGUAGE
    assert reason_of("file:///a.py", "x" * 11, rules=rules) is ExclusionReason.GIANT
    assert reason_of("file:///a.py", "x" * 10, rules=rules) is None
    assert reason_of("file:///a.bin", "ab\0cd") is ExclusionReason.BINARY


@pytest.mark.parametrize("text", ["", "x = 1\r\n\ty\f\n", "'\x1b[0m'", "# ünïcödé 漢字 😋\n", "\ufeffx"])
def test_text_is_not_binary(text):
    assert not is_binary(text)
    assert is_binary("\ufffd" * 20 + "x" * 80)  # no text after decoding


@pytest.mark.parametrize("patterns", ["*.py", [1], ["a\nb"], [""], ["!"], ["*.py", "[a"]])
def test_bad_patterns_are_refused(patterns):
    with pytest.raises(SettingsError):
        parse_settings({"privacy": {"exclude_patterns": patterns}})
