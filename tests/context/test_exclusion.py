import pytest

from dg_lsp.context import exclusion
from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import Exclusion, ExclusionReason, is_binary, path_of
from dg_lsp.errors import SettingsError
from dg_lsp.settings import PrivacySettings, parse_settings

RULES = Exclusion(PrivacySettings())


def reason_of(uri, text="x = 1\n", language="python", rules=RULES):
    return rules.reason(Snapshot(uri, 1, text, language))


@pytest.mark.parametrize(
    "name",
    [".env", ".env.local", "deploy/.env.production", "server.pem", "a/b/tls.key", "id_rsa", "id_ed25519_work",
     ".netrc", ".aws/credentials", "home/.ssh/known_hosts", "prod.tfvars", ".docker/config.json", "secrets.yaml"],
)  # fmt: skip
def test_files_with_secrets_are_excluded(name):
    assert reason_of(f"file:///project/{name}") is ExclusionReason.SECRETS


@pytest.mark.parametrize(
    "name",
    ["main.py", "environment.py", "keys.py", "key/main.py", ".env.example", "id_rsa.pub", "config.json", "monkey.js",
     "credentials.py", "secrets.py", "env/main.py"],
)  # fmt: skip
def test_files_with_similar_names_are_not_excluded(name):
    assert reason_of(f"file:///project/{name}") is None


def test_the_path_of_a_uri_decides():
    assert path_of("file:///home/me/a%20b/.env") == "home/me/a b/.env"
    assert reason_of("file:///home/me/a%20b/%2Eenv") is ExclusionReason.SECRETS
    assert reason_of("untitled:Untitled-1") is None
    assert reason_of("file:///a/.env", rules=Exclusion(PrivacySettings(exclude_secrets=False))) is None


def test_patterns_have_the_syntax_of_gitignore():
    settings = parse_settings({"privacy": {"exclude_patterns": ["generated/", "*.lock", "!keep.lock"]}}).privacy
    rules = Exclusion(settings)
    reasons = [reason_of(f"file:///a/{name}", rules=rules) for name in ("generated/x.py", "uv.lock", "keep.lock")]
    assert reasons == [ExclusionReason.PATTERN, ExclusionReason.PATTERN, None]


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


@pytest.mark.parametrize("patterns", ["*.py", [1], ["a\nb"], [""]])
def test_bad_patterns_are_refused(patterns):
    with pytest.raises(SettingsError):
        parse_settings({"privacy": {"exclude_patterns": patterns}})
