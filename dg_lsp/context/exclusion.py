"""Exclusion: documents that are never sent to a model, neither for completion nor as context of other files.

Patterns have the syntax of .gitignore files and are matched by `pathspec`: the last match decides, `!` negates.
"""

import functools
import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from pathspec import GitIgnoreSpec

from dg_lsp.context.document import Snapshot
from dg_lsp.settings import PrivacySettings

SECRETS = (
    ".env*", "!.env.example", "!.env.sample", "!.env.template", "!.envrc.example", ".envrc",
    "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.asc", "*.gpg",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "!id_*.pub",
    ".netrc", "_netrc", ".pgpass", ".my.cnf", ".npmrc", ".pypirc", ".git-credentials", ".htpasswd", ".dockercfg",
    "credentials", "credentials.json", "credentials.toml", "secrets.json", "secrets.toml", "secrets.yml",
    "secrets.yaml", "*.tfvars", "*.tfstate", "*.tfstate.backup", "service-account*.json", "*.ovpn",
    "**/.docker/config.json", "**/.kube/config", ".aws/", ".gnupg/", ".ssh/",
)  # fmt: skip
"""Files that usually contain keys or passwords."""
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
        if (by_path := self.path_reason(path_of(snapshot.uri))) is not None:
            return by_path
        if len(snapshot.text) > MAX_CHARS:
            return ExclusionReason.GIANT
        return ExclusionReason.BINARY if is_binary(snapshot.text) else None

    def path_reason(self, path: str) -> ExclusionReason | None:
        """Why a file is excluded by its path, before it is read, or None."""
        if self.settings.exclude_secrets and _compiled(SECRETS).match_file(path):
            return ExclusionReason.SECRETS
        return ExclusionReason.PATTERN if _compiled(self.settings.exclude_patterns).match_file(path) else None


def path_of(uri: str) -> str:
    """The path of a URI in the form that patterns match: with slashes, without the leading one."""
    return unquote(urlsplit(uri).path).lstrip("/")


def is_binary(text: str) -> bool:
    """True for a NUL or too many control characters near the beginning."""
    start = text[:_INSPECTED_CHARS]
    return "\0" in start or len(_ODD.findall(start)) > max(_FEW_ODD, _MAX_ODD * len(start))


_compiled = functools.lru_cache(maxsize=16)(GitIgnoreSpec.from_lines)
