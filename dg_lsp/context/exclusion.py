"""Which buffers a model is never shown, neither as the place of a fill nor as context of another. Knows paths and text.

Patterns are those of .gitignore files, matched by `pathspec`; the last one that matches decides, and `!` takes back.
"""

import functools
import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from pathspec import GitIgnoreSpec

from dg_lsp.context.document import Snapshot
from dg_lsp.settings import ExcludeSettings

SECRETS = (
    ".env*", "!.env.example", "!.env.sample", "!.env.template", "!.envrc.example", ".envrc",
    "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.asc", "*.gpg",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "!id_*.pub",
    ".netrc", "_netrc", ".pgpass", ".my.cnf", ".npmrc", ".pypirc", ".git-credentials", ".htpasswd", ".dockercfg",
    "credentials", "credentials.json", "credentials.toml", "secrets.json", "secrets.toml", "secrets.yml",
    "secrets.yaml", "*.tfvars", "*.tfstate", "*.tfstate.backup", "service-account*.json", "*.ovpn",
    "**/.docker/config.json", "**/.kube/config", ".aws/", ".gnupg/", ".ssh/",
)  # fmt: skip
"""Files that usually hold keys or passwords."""
_LOOKED_AT = 8000
"""Characters of a buffer's beginning that tell text from what is none."""
_ODD = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")
_MAX_ODD = 0.1
"""Share of control and replacement characters in a text."""
_FEW_ODD = 8
"""So many of them mean nothing, however short the text is."""


class ExclusionReason(StrEnum):
    """Why a buffer is left out, as the client's log says it."""

    LANGUAGE = "its language is turned off"
    SECRETS = "it is of a kind that holds secrets"
    PATTERN = "a pattern of the settings excludes it"
    IGNORED = "a .gitignore excludes it"
    GIANT = "it is longer than the settings allow"
    BINARY = "it is no text"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The settings' rules."""

    settings: ExcludeSettings

    def why(self, snapshot: Snapshot) -> ExclusionReason | None:
        """Why this buffer must not be shown to a model, or None where it may."""
        settings = self.settings
        if snapshot.language in settings.languages:
            return ExclusionReason.LANGUAGE
        if (by_path := self.why_path(path_of(snapshot.uri))) is not None:
            return by_path
        if len(snapshot.text) > settings.max_file_chars:
            return ExclusionReason.GIANT
        return ExclusionReason.BINARY if is_binary(snapshot.text) else None

    def why_path(self, path: str) -> ExclusionReason | None:
        """The same by a file's path alone, before it is read."""
        if self.settings.secrets and _compiled(SECRETS).match_file(path):
            return ExclusionReason.SECRETS
        return ExclusionReason.PATTERN if _compiled(self.settings.patterns).match_file(path) else None


def path_of(uri: str) -> str:
    """The path of a URI as patterns see it: with slashes, without the leading one."""
    return unquote(urlsplit(uri).path).lstrip("/")


def is_binary(text: str) -> bool:
    """A NUL near the beginning, or too much that no editor can show."""
    start = text[:_LOOKED_AT]
    return "\0" in start or len(_ODD.findall(start)) > max(_FEW_ODD, _MAX_ODD * len(start))


@functools.lru_cache(maxsize=16)
def _compiled(patterns: tuple[str, ...]) -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(patterns)
