"""The engine of a worker: opened, given up while there is no work, opened again, told of other settings."""

from collections.abc import Callable

from dg_lsp.diffusion.denoiser import Footprint
from dg_lsp.engine.engine import Engine
from dg_lsp.errors import DgLspError
from dg_lsp.settings import FillSettings


class HeldEngine:
    """Belongs to the model's thread; others may read whether it is there."""

    def __init__(self, open_engine: Callable[[], Engine], settings: FillSettings) -> None:
        self._open_engine = open_engine
        self._engine: Engine | None = None
        self.settings = settings
        """Of requests that bring none. Whoever sets them is heard at the next request."""

    @property
    def is_open(self) -> bool:
        """The model is in memory."""
        return self._engine is not None

    @property
    def footprint(self) -> Footprint:
        """Of the memory, as it is; nothing while no model is there."""
        engine = self._engine
        return engine.footprint if engine is not None else Footprint()

    def open(self) -> Engine:
        """The engine as it is; opened where it is not.

        Raises:
            ModelError, BackendError: it cannot be opened.
        """
        if self._engine is None:
            self._engine = self._open_engine()
        return self._engine

    def configured(self, settings: FillSettings | None) -> Engine:
        """The engine with these settings, or its own.

        Raises:
            ModelError, BackendError: as `open` does.
        """
        engine, wanted = self.open(), settings or self.settings
        if wanted == engine.settings:
            return engine
        try:
            self._engine = engine.configured(wanted)
        except DgLspError:  # a prompt format that the model does not know: it goes on as it was
            return engine
        return self._engine

    def close(self) -> None:
        """Gives the model's memory back. Harmless when repeated."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
