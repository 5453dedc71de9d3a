"""Exclusion: documents that are never sent to a model, neither for completion nor as context of other files.

Secrets in the context of other files are masked.

Patterns have the syntax of .gitignore files and are matched by `pathspec`: the last match decides, `!` negates.
"""

import functools
import re
import sys
import unicodedata
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PureWindowsPath
from typing import Any
from urllib.parse import unquote

from pathspec import GitIgnoreSpec

from dg_lsp.context.document import Snapshot, path_of, split_uri
from dg_lsp.settings import PrivacySettings, is_pattern

SECRET_FILES = (
    ".env*", "*.env", "!.env.example", "!.env.sample", "!.env.template", "!.envrc.example",
    "*.pem", "*.key", "*.p8", "*.p12", "*.pfx", "*.pkcs12", "*.jks", "*.jceks", "*.bks", "*.keystore", "*.keytab",
    "*.kdb", "*.kdbx", "*.ppk", "*.snk", "*.asc", "*.gpg", "*.pgp", "*.agekey", "*.keychain", "*.keychain-db",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "!id_*.pub", "*.ovpn",
    ".netrc", "_netrc", ".authinfo", ".pgpass", "pgpass.conf", ".my.cnf", ".mylogin.cnf", ".msmtprc", ".fetchmailrc",
    ".npmrc", ".yarnrc.yml", ".pypirc", "pip.conf", "pip.ini", "auth.json", ".git-credentials", ".htpasswd",
    ".htdigest", ".dockercfg", "kubeconfig", "kubeconfig.json", "kubeconfig.y*ml", "*.kubeconfig", "*.tfvars",
    "*.tfvars.json", "*.tfstate", "*.tfstate.*", ".terraformrc", ".boto", ".s3cfg", "rclone.conf",
    "*accesskeys*.csv", "rootkey.csv", "*serviceaccount*.json", "*service-account*.json", "*service_account*.json",
    "client_secret*.json", "client-secret*.json", "*firebase-adminsdk*.json", "kaggle.json", ".databrickscfg",
    "local.settings.json", ".dev.vars*", "wallet.dat", ".passwd", "ssh_host_*_key",
    "credentials", "credentials.csv", "credentials.ini", "*credentials.json", "credentials.toml", "credentials.xml",
    "credentials.y*ml", "secrets.ini", "secrets.json", "secrets.toml", "secrets.xml", "secrets.y*ml",
    "token", "token.json", "tokens.json", "*.token", ".*token", "stored_tokens", "sitemanager.xml", "recentservers.xml",
    ".vault-pass*", ".vault_pass*", "vault-password*", "vault_password*", "logins.json", "key4.db", "cookies.txt",
    "cookies.sqlite", ".*history", ".histfile", ".lesshst", ".viminfo", "fish_history", "consolehost_history.txt",
)  # fmt: skip
"""Names of files that usually contain keys or passwords, in lower case."""
SECRET_PATHS = (
    ".ssh/", ".gnupg/", ".password-store/", ".aws/", ".azure/", ".oci/", ".kube/", ".env.d/", ".envs/",
    "**/.git/config", "**/.docker/config.json", "**/.m2/settings*.xml", "**/.gradle/*.properties", "**/gh/hosts.yml",
    "**/gcloud/*credentials*", "**/etc/*shadow*", ".terraform.d/", ".snowsql/",
)  # fmt: skip
"""The same for folders, and for names that are usual elsewhere too."""
_MAX_PATH, _MAX_NAME = 1 << 16, 255
"""Characters of a path, some of them encoded, and of a name in it: no system allows more."""
MAX_LOCAL_PATH = 4096
"""Longest path of a file on Linux and macOS, and of nearly all on Windows."""
_BACKUP = re.compile(
    r"(~|\.(bak|backup|git|old|orig|save|sw[a-p]|tmp|txt|\d{1,9})| \(\d{1,9}\)| (- )?copy)+(?=\.\w+$|$)"
)
"""Ends of the names of backups and copies; `.git` is that of a former version in VS Code."""
IGNORES_CASE = sys.platform in ("win32", "darwin")
"""Whether two spellings of a path that differ in case usually name the same file."""
_DRIVE = re.compile(r"[A-Za-z]:")
_TRAILING = re.compile(r"(?<![. ])[. ]++(?=/|$)")  # ignored by Windows
_STREAM = re.compile(r"[. ]*:[^/]*$")  # of a file on Windows
_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")  # some are ignored by macOS
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:[^-]|-(?!----BEGIN ))*?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|[\w+/=\s\\:,-]*)",
)
_KEY_LINES = re.compile(  # of a key whose beginning is not part of the text
    r"(?:^[ \t#*/\"']{0,80}[A-Za-z0-9+/]{60,76}(?:\\n)?[\"', +\\]{0,8}\n){2,}"
    r"(?:[ \t#*/\"']{0,80}[A-Za-z0-9+/]{1,76}={0,2}(?![^\s\"'\\]))?",
    re.MULTILINE,
)
_TOKEN = re.compile(
    r"\b(?:"
    r"A(?:KI|SI|BI|CC)A[A-Z2-7]{16}\b|ABSK[\w+/]{60,}"  # Amazon
    r"|(?i:aws_?secret_?access_?key)[\"']?\s*[=:]\s*[\"']?[A-Za-z0-9+/]{40}(?![A-Za-z0-9+/])"
    r"|gh[pousr]_\w{36,}|github_pat_\w{22,}|gl(?:pat|ptt|dt|rt|cbt|soat)-[\w-]{20,}"
    r"|sk-[\w-]{16,}|sk-live-\w+|(?:sk|rk|whsec)_(?:live_|test_)?[A-Za-z0-9]{16,}"
    r"|xai-\w{20,}|gsk_\w{20,}|hf_[A-Za-z0-9]{30,}"
    r"|xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}|AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}"
    r"|npm_\w{36}|pypi-[\w-]{50,}|dckr_pat_[\w-]{20,}|do[opr]_v1_[a-f0-9]{64}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|hv[sbr]\.[\w-]{20,}|dapi[a-f0-9]{32}|shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}|lin_api_\w{30,}|glsa_\w{32,}"
    r"|AGE-SECRET-KEY-1[A-Z0-9]{50,}|\d{8,10}:AA[\w-]{33}"
    r"|(?:(?<!-)eyJ[\w-]{8,}+|eyJ[\w-]{8,256}+)\.eyJ[\w-]{8,}\.[\w-]*"  # a JSON web token
    r")|(?<=AccountKey=)[\w+/]{40,}={0,2}|(?<=hooks\.slack\.com/services/)[\w/]{20,}"
    r"|(?<=://)[^\s/:@\"']{1,64}:[^\s/@\"']{1,128}(?=@)"  # user and password of an address
)
_LINEAR = tuple(
    (re.compile(found), replacement)
    for found, replacement in (
        (r"\[\^(?![/\]])", "[^/"),  # as in git, a slash is in no class
        (r"(?:\[\^/\]\*)+", "[^/]*"),
        (r"\[\^/\]\*((?:\\.|\[(?!\^[^/]|\^/\]\*)\^?\]?[^\]]*\]|[^/\\\[(|*+?$])+)(?=\[\^/\]\*)", r"(?>[^/]*?\1)"),
        (r"\^\(\?:\.\+/\)\?((?:(?!\(\?:/\.\+\)\?).)+?)(?=\(\?:/\.\+\)\?)", r"^(?>(?:.+?/)??\1(?=/))"),
        (r"\(\?:/\.\+\)\?(/(?:(?!\(\?:/\.\+\)\?).)+?)(?=\(\?:/\.\+\)\?)", r"(?>(?:/.+?)??\1(?=/))"),
    )
)
"""Replacements in pathspec's expressions, which would be matched for hours: what lies between two asterisks, or between
two `**`, is taken where it comes first, and nowhere else."""
MASK = "***"
"""Stands for a private key or a token in a snippet."""
MAX_CHARS = 20_000_000  # longer documents are excluded
_INSPECTED_CHARS = 8000  # at the beginning of a document decide whether it is text
_ODD = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")
_MAX_ODD = 0.1  # largest fraction of control and replacement characters in a text
_FEW_ODD = 8  # such characters that every text may contain


class ExclusionReason(StrEnum):
    """Why a document is excluded, as written to the client's log."""

    LANGUAGE = "its language is excluded"
    SECRETS = "files of this kind usually contain secrets"
    PATTERN = "a pattern of the settings excludes it"
    IGNORED = "a .gitignore excludes it"
    GIANT = "it is longer than the limit"
    BINARY = "it is not text"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The exclusion rules of the settings."""

    settings: PrivacySettings

    def reason(self, snapshot: Snapshot) -> ExclusionReason | None:
        """Why this document is excluded, or None."""
        settings = self.settings
        if snapshot.language in settings.exclude_languages:
            return ExclusionReason.LANGUAGE
        if (by_path := self._uri_reason(snapshot.file_uri)) is not None:
            return by_path
        if len(snapshot.text) > MAX_CHARS:
            return ExclusionReason.GIANT
        return ExclusionReason.BINARY if is_binary(snapshot.text) else None

    def path_reason(self, path: str) -> ExclusionReason | None:
        """Why a file is excluded by its path, before it is read, or None."""
        if self.settings.exclude_secrets and is_secret(path):
            return ExclusionReason.SECRETS
        return ExclusionReason.PATTERN if compiled(self.settings.exclude_patterns).match_file(folded(path)) else None

    def _uri_reason(self, uri: str) -> ExclusionReason | None:
        """By the path of a URI; for a file on this machine also by the path that its links lead to."""
        path = path_of(uri)
        reason = self.path_reason(path)
        if reason is None and (local := local_path(uri)) is not None:
            with suppress(OSError, ValueError, RuntimeError):  # unreadable, a NUL, links in a circle
                target = local.resolve().as_posix().lstrip("/")
                return self.path_reason(target) if target != path else None
        return reason


def is_secret(path: str) -> bool:
    """Whether a file with this path, or one that it is a backup of, usually contains secrets, in any spelling."""
    if len(path) > _MAX_PATH:  # no file has such a path, and matching would take long
        return True
    # long ones are not cached: they would take much memory
    return (_is_secret if len(path) <= MAX_LOCAL_PATH else _is_secret.__wrapped__)(path)


@functools.lru_cache(maxsize=1024)
def _is_secret(path: str) -> bool:
    for _ in range(3):  # some clients encode a URI twice
        path = unquote(path)
    path = unicodedata.normalize("NFKC", path)
    if any(len(part) > _MAX_NAME for part in path.split("/")):
        return True
    path = _TRAILING.sub("", _INVISIBLE.sub("", path).replace("\\", "/").casefold())
    files, name = _compiled(SECRET_FILES), path.rstrip("/").rpartition("/")[2]
    names = (name, _BACKUP.sub("", name), _STREAM.sub("", name))
    return any(map(files.match_file, names)) or _compiled(SECRET_PATHS).match_file(path)


def mask_secrets(text: str) -> str:
    """The text with private keys, also incomplete ones, and tokens of known forms replaced by `***`."""
    for pattern in (_PRIVATE_KEY, _KEY_LINES, _TOKEN):
        text = pattern.sub(MASK, text)
    return text


def local_path(uri: str, flavour: type[Path] = Path) -> Path | None:
    """The absolute path of a `file` URI in this system's flavour; None for any other URI, and where it is too long.

    On Windows `file:///c%3A/a` is `C:/a`, and `file://server/share/a` is `//server/share/a`.
    """
    scheme, host, text = split_uri(uri)
    host, text = unquote(host), unquote(text)
    if len(text) > MAX_LOCAL_PATH:  # its folders would take quadratic memory
        return None
    path = flavour("/" + text.lstrip("/"))
    if isinstance(path, PureWindowsPath):
        drive = text.lstrip("/\\")
        path = flavour(drive if _DRIVE.match(drive) else f"//{host}{text}" if host else text)
    return path if scheme == "file" and path.is_absolute() else None


def folded(text: str) -> str:
    """The text as names are compared here: on Windows and macOS without case."""
    return text.casefold() if IGNORES_CASE else text


@functools.lru_cache(maxsize=64)
def compiled(lines: tuple[str, ...]) -> GitIgnoreSpec:
    """Patterns of a .gitignore file or of the settings, for folded paths. Invalid ones are skipped, as git does."""
    patterns = GitIgnoreSpec.from_lines(folded(one) for one in lines if is_pattern(one)).patterns
    return GitIgnoreSpec([_in_linear_time(one) for one in patterns])


def _in_linear_time(pattern: Any) -> Any:
    if pattern.regex is None:  # a comment
        return pattern
    regex = pattern.regex.pattern
    for found, replacement in _LINEAR:
        regex = found.sub(replacement, regex)
    return type(pattern)(re.compile(regex), pattern.include)


def is_binary(text: str) -> bool:
    """True for a NUL or too many control characters near the beginning."""
    start = text[:_INSPECTED_CHARS]
    return "\0" in start or len(_ODD.findall(start)) > max(_FEW_ODD, _MAX_ODD * len(start))


_compiled = functools.lru_cache(maxsize=16)(GitIgnoreSpec.from_lines)
