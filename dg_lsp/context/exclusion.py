"""Exclusion: documents that are never sent to a model, neither for completion nor as context of other files.

Secrets in the context of other files are masked.
"""

import functools
import os
import re
import tomllib
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from importlib import resources
from pathlib import Path, PureWindowsPath
from typing import Any
from urllib.parse import unquote

from dg_lsp.context.document import Snapshot, path_of, split_uri
from dg_lsp.context.syntax_tree import Inside, inside
from dg_lsp.gitignore import Rule, anywhere, compiled, folded, is_excluded, path_bytes
from dg_lsp.settings import PrivacySettings

SECRET_FILES = (
    ".env*", "*.env", "!.env.example", "!.env.sample", "!.env.template", "!.envrc.example",
    "*.pem", "*.key", "*.der", "*.jwk", "*.p8", "*.p12", "*.pfx", "*.pkcs12", "*.pvk", "*.jks", "*.jceks", "*.bks",
    "*.keystore", "*.keytab", "*.kdb", "*.kdbx", "*.ppk", "*.snk", "*.asc", "*.gpg", "*.pgp", "*.agekey", "*.keychain",
    "*.keychain-db", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "!id_*.pub", "*_rsa", "*_ed25519", "*.ovpn",
    ".netrc", "_netrc", ".authinfo", ".pgpass", "pgpass.conf", ".my.cnf", ".mylogin.cnf", ".msmtprc", ".fetchmailrc",
    ".npmrc", ".yarnrc.yml", ".pypirc", "pip.conf", "pip.ini", "auth.json", ".git-credentials", ".htpasswd",
    ".htdigest", ".dockercfg", "kubeconfig", "kubeconfig.json", "kubeconfig.y*ml", "*.kubeconfig", "*.tfvars",
    "*.tfvars.json", "*.tfstate", "*.tfstate.*", ".terraformrc", "terraform.rc", ".boto", ".s3cfg", "rclone.conf",
    "*accesskeys*.csv", "rootkey.csv", "*serviceaccount*.json", "*service-account*.json", "*service_account*.json",
    "client_secret*.json", "client-secret*.json", "*firebase-adminsdk*.json", "google-services.json",
    "googleservice-info.plist", "kaggle.json", ".databrickscfg", "appsettings.*.json", "local.settings.json",
    "connectionstrings.*", "key.json", "key.properties", "keystore.properties", "wp-config.php", "localsettings.php",
    "settings.local.php", "secret_token.rb", ".dev.vars*", "wallet.dat", ".passwd", "passwd", "ssh_host_*_key",
    "credentials", "*credentials.json", "secrets", "token", "*.secret", "*.secrets", "*.token", ".*token",
    "stored_tokens", "sitemanager.xml", "recentservers.xml",
    ".vault-pass*", ".vault_pass*", "vault-password*", "vault_password*", "logins.json", "key4.db", "cookies.txt",
    "cookies.sqlite", ".*history", ".histfile", ".lesshst", ".viminfo", "fish_history", "consolehost_history.txt",
    *(
        f"{stem}.{ending}"
        for stem in ("api?key", "api?keys", "apikey*", "credential", "credentials", "keys", "password", "passwords",
                     "secret", "secrets", "token", "tokens", "vault")
        for ending in ("cfg", "conf", "csv", "ini", "json", "plist", "properties", "toml", "txt", "xml", "y*ml")
    ),
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
_BEFORE = re.compile(r"^(\.?#|~\$|\.~lock\.|copy (\(\d{1,9}\) )?of )*(.*[%!](?=.))?")
_BEHIND = re.compile(
    r"(~|#| \(\d{1,9}\)| \(([\w ]{1,20} )?copy( \d{1,9})?\)| (- )?copy( \d{1,9})?"
    r"|[._-](bak|backup|copy|git|kate-swp|old|orig|rej|save|sw[a-p]|temp|tmp|txt|un|\d{1,14}"
    r"|ci|dev|development|live|local|prod|production|qa|stage|staging|test|testing|uat))+(?=\.\w+$|$)"
)
"""Beginnings and ends of the names of backups, swap files, copies and variants for one machine.

`%` and `!` stand for the slashes of a path in swap folders; `.git` ends a former version in VS Code.
"""
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
_RUN, _RANDOM = re.compile(r"[\w+/=~-]{14,}"), re.compile(r"\d|[A-Za-z0-9+/]{20}")
_NEAR = 60  # characters from the name of a token to its value, at most
_TOKEN_PART = re.compile(r"[^\s\"'`]*")
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


class WorkspaceFolders:
    """The folders of a workspace, found by their names: a workspace may have thousands."""

    def __init__(self, roots: Iterable[Path] = ()) -> None:
        self.roots = tuple(roots)

    @functools.cached_property
    def _names(self) -> frozenset[str]:
        """Also those of the folders that links lead to; computed at the first use, since each is looked up."""
        return frozenset(folded(one.as_posix()) for root in self.roots for one in (root, link_target(root)))

    def around(self, path: Path) -> list[Path]:
        """The folders of the workspace that a path is in, the innermost first."""
        return [one for one in path.parents if folded(one.as_posix()) in self._names] if self.roots else []


NO_FOLDERS = WorkspaceFolders()


class Exclusion:
    """The exclusion rules of the settings, for a workspace with these folders."""

    def __init__(self, settings: PrivacySettings, workspace: WorkspaceFolders = NO_FOLDERS) -> None:
        self.settings = settings
        self.workspace = workspace

    def exclusion_reason(self, snapshot: Snapshot) -> ExclusionReason | None:
        """Why the model must not see this document, or None."""
        settings = self.settings
        if snapshot.language in settings.exclude_languages:
            return ExclusionReason.LANGUAGE
        if (by_path := self._uri_reason(snapshot.file_uri)) is not None:
            return by_path
        if len(snapshot.text) > MAX_CHARS:
            return ExclusionReason.GIANT
        return ExclusionReason.BINARY if is_binary(snapshot.text) else None

    def is_excluded(self, snapshot: Snapshot) -> bool:
        """Whether the model must not see this document."""
        return self.exclusion_reason(snapshot) is not None

    def is_outside_code(self, snapshot: Snapshot, offset: int) -> bool:
        """Whether the settings exclude automatic completions in the comment or string around the cursor."""
        kinds = [Inside.COMMENT] if self.settings.exclude_comments else []
        kinds += [Inside.STRING] if self.settings.exclude_strings else []
        return bool(kinds) and inside(snapshot.alone().text, offset - snapshot.num_before, snapshot.language) in kinds

    def path_reason(self, path: str, folders: Iterable[Path] = ()) -> ExclusionReason | None:
        """Why a file is excluded by its path, before it is read, or None.

        Patterns are relative to the root of the file system, and to each of the folders that the file is in. If it is
        in none, they are relative to every folder around the file, because one of them is that of its project.
        """
        if self.settings.exclude_secrets and is_secret(path):
            return ExclusionReason.SECRETS
        text, patterns = path_bytes(path), self.settings.exclude_patterns
        around = {path_bytes(one.as_posix().strip("/") + "/").lstrip("/") for one in folders}
        starts = {len(one) for one in around if text.startswith(one)}
        lines = patterns if starts else tuple(map(anywhere, patterns))
        rules = (Rule(start, one) for one in compiled(lines) for start in {0, *starts})
        return ExclusionReason.PATTERN if is_excluded(text, rules) else None

    def _uri_reason(self, uri: str) -> ExclusionReason | None:
        """By the path of a URI; for a file on this machine also by the path that its links lead to."""
        path, local = path_of(uri), local_path(uri)
        if local is None:
            return self.path_reason(path)
        files = [local, link_target(local)]
        folders = [folder for file in files for folder in self.workspace.around(file)]
        if self.settings.exclude_patterns:
            folders += filter(None, map(repository_around, files))
        spellings = dict.fromkeys([path, *(one.as_posix().lstrip("/") for one in files)])
        return next(filter(None, (self.path_reason(one, folders) for one in spellings)), None)


def link_target(path: Path) -> Path:
    """Where the links of a path lead; the path itself where that is unknown."""
    with suppress(OSError, ValueError, RuntimeError):  # unreadable, a NUL, links in a circle
        return Path(path).resolve()
    return path


def repository_around(path: Path) -> Path | None:
    """The innermost folder around a path that is a git repository or one of its work trees."""
    return next((folder for folder in path.parents if _is_repository(Path(folder, ".git"))), None)


def _is_repository(path: Path) -> bool:
    with suppress(OSError, ValueError):  # unreadable, a NUL
        return path.is_file() or os.path.lexists(path / "HEAD")
    return False


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
    name = path.rstrip("/").rpartition("/")[2]
    bare = _BEHIND.sub("", _BEFORE.sub("", name))
    names = {name, _STREAM.sub("", name), bare, bare.lstrip(".")}  # the names of swap files begin with a dot
    files, paths = ([Rule(0, pattern) for pattern in compiled(one)] for one in (SECRET_FILES, SECRET_PATHS))
    return any(is_excluded(one, files) for one in map(path_bytes, names)) or is_excluded(path_bytes(path), paths)


def mask_secrets(text: str) -> str:
    """The text with private keys, also incomplete ones, and tokens of known forms replaced by `***`."""
    for pattern in (_PRIVATE_KEY, _KEY_LINES):
        text = pattern.sub(MASK, text)
    lower, runs = text.lower(), (found for found in _RUN.finditer(text) if _RANDOM.search(found[0]))
    near = "\n".join(text[max(0, found.start() - _NEAR) : found.end()] for found in runs).lower()
    for rule in _rules():
        place = lower if "anywhere" in rule else near
        if any(word in place for word in rule["keywords"]):
            text = _expression(rule["regex"]).sub(_masked, text)
    return text


def cut(text: str, length: int) -> str:
    """The beginning of a text, without a token at its end that is cut, which `mask_secrets` would not recognise."""
    head = text[: length + 1]
    found = _TOKEN_PART.match(head[::-1]) if len(head) > length else None
    return head[: len(head) - (found.end() if found is not None else 0)][:length]


@functools.cache
def _rules() -> list[dict[str, Any]]:
    """The forms of tokens."""
    text = resources.files(__package__).joinpath("secrets.toml").read_text(encoding="utf-8")
    rules: list[dict[str, Any]] = tomllib.loads(text)["rules"]
    return rules


_expression = functools.cache(re.compile)


def _masked(found: re.Match[str]) -> str:
    """What matched, with its last group masked, or as a whole if it has none."""
    start, end = (at - found.start() for at in found.span(found.lastindex or 0))
    return found[0][:start] + MASK + found[0][end:]


def local_path(uri: str, flavour: type[Path] = Path) -> Path | None:
    """The absolute path of a `file` URI in this system's flavour; None for any other URI, and where it is too long.

    On Windows `file:///c%3A/a` is `C:/a`, and `file://server/share/a` is `//server/share/a`.
    """
    scheme, host, text = split_uri(uri)
    host, text = unquote(host), unquote(text, errors="surrogateescape")  # names that are not UTF-8
    if len(text) > MAX_LOCAL_PATH:  # its folders would take quadratic memory
        return None
    path = flavour("/" + text.lstrip("/"))
    if isinstance(path, PureWindowsPath):
        drive = text.lstrip("/\\")
        path = flavour(drive if _DRIVE.match(drive) else f"//{host}{text}" if host else text)
    return path if scheme == "file" and path.is_absolute() else None


def is_binary(text: str) -> bool:
    """True for a NUL or too many control characters near the beginning."""
    start = text[:_INSPECTED_CHARS]
    return "\0" in start or len(_ODD.findall(start)) > max(_FEW_ODD, _MAX_ODD * len(start))
