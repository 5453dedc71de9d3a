"""How the daemons of a place have died, and with which models at work: one that ends its process is left alone.

Only who holds the place's lock notes a death, of whoever held it before. Numbers and names; never a text.
"""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dg_lsp.daemon.place import write_private
from dg_lsp.errors import ModelCrashedError

SECONDS = 600.0
"""Deaths that are longer ago are forgotten."""
MAX_DEATHS = 3
"""A model that was at work in so many of them is not opened."""
_LEDGER = "daemon.deaths"
_KEPT = 20


@dataclass(frozen=True, slots=True)
class Death:
    """One daemon's."""

    at: float
    """Seconds since 1970."""
    how: str
    """The fatal signal, where the process could say it; else it was killed."""
    models: tuple[str, ...]
    """Those that it was opening, or that something was asked of."""


class Deaths:
    """The last ones in a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _LEDGER

    def note(self, how: str, models: Sequence[str]) -> None:
        """One more, just now."""
        kept = [*self.recent(), Death(time.time(), how, tuple(models))][-_KEPT:]
        with suppress(OSError):  # a full disk keeps nobody from having a model
            write_private(self._path, [asdict(one) for one in kept])

    def recent(self) -> list[Death]:
        """Those of the last ten minutes, the oldest first."""
        try:
            found = [Death(one["at"], one["how"], tuple(one["models"])) for one in json.loads(self._path.read_text())]
            return [one for one in found if 0 <= time.time() - one.at < SECONDS]
        except (OSError, ValueError, TypeError, KeyError):
            return []

    def check(self, model: str) -> None:
        """Harmless for a model that did not die too often.

        Raises:
            ModelCrashedError: it did.
        """
        found = [one for one in self.recent() if model in one.models]
        if len(found) >= MAX_DEATHS:
            minutes = (SECONDS - (time.time() - found[-MAX_DEATHS].at)) / 60
            raise ModelCrashedError(
                f"{model} ended the daemon {len(found)} times ({found[-1].how}); it rests for {minutes:.0f} min:"
                " choose another model, or run dg-lsp daemon stop to have it tried again"
            )

    def forget(self) -> None:
        """All of them: a person has decided that it shall be tried again."""
        self._path.unlink(missing_ok=True)
