"""The key of a server: from the environment, or from the system's keyring where the user wants that."""

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from dg_lsp.errors import SettingsError
from dg_lsp.settings import RemoteSettings

SERVICE = "dg-lsp"


@dataclass(frozen=True, slots=True, repr=False)
class Key:
    """Never shown: its representation says only whether there is one."""

    secret: str

    def __repr__(self) -> str:
        return "Key(set)" if self.secret else "Key(none)"

    def headers(self) -> dict[str, str]:
        """As OpenAI's servers want it."""
        return {"Authorization": f"Bearer {self.secret}"} if self.secret else {}


def key_of(settings: RemoteSettings) -> Key:
    """The key that the settings point to; none where there is none.

    Raises:
        SettingsError: the keyring is wanted and cannot be asked, or the key cannot stand in a header.
    """
    secret = os.environ.get(settings.key_variable, "").strip() if settings.key_variable else ""
    if not secret and settings.keyring:
        secret = _from_keyring(urlsplit(settings.url).hostname or "")
    if not (secret.isascii() and secret.isprintable()):
        raise SettingsError("the key of the remote server holds characters that no key has; set it again")
    return Key(secret)


def _from_keyring(host: str) -> str:
    try:
        import keyring
    except ImportError as error:
        raise SettingsError(
            "remote.keyring needs the package keyring: install it, or set remote.key_variable"
        ) from error
    try:
        return (keyring.get_password(SERVICE, host) or "").strip()
    except keyring.errors.KeyringError as error:
        raise SettingsError(f"the keyring cannot be asked ({type(error).__name__}): unlock it") from error
