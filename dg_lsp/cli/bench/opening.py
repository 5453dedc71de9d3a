"""The model that a benchmark measures, with what its report says of it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attrs

from dg_lsp.bench.runs import file_sha256
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli import loading
from dg_lsp.engine.decoder_selection import measure_costs
from dg_lsp.engine.engine import Engine
from dg_lsp.errors import UsageError
from dg_lsp.settings import RemoteSettings, Settings

REMOTE = "remote"
"""The way of a server."""
_ASKED = ("url", "api", "model", "fim", "max_prompt_tokens", "temperature")


@dataclass(frozen=True, slots=True, eq=False)
class OpenedModel:
    """An engine and where it comes from."""

    engine: Engine
    path: Path | None
    """None of a server's."""
    threads: int | None
    """CPU threads of a step."""

    @property
    def sha256(self) -> str | None:
        """Of the file, where there is one.

        Raises:
            InputFileError: it cannot be read.
        """
        return None if self.path is None else file_sha256(self.path)


def open_model(settings: Settings) -> OpenedModel:
    """Loads the model of the settings, ready for its first request as in an editor: `auto` knows what steps cost here.

    Raises:
        ModelError: no such model, broken, unsupported, or no memory for it.
        BackendError: the runtime cannot be loaded.
        SettingsError: a server is wanted, and it is not said where it is or how to get in.
    """
    if settings.backend == REMOTE:
        return OpenedModel(loading.open_engine(settings), None, None)
    model = loading.load_model(settings)
    denoiser = loading.open_denoiser(model, settings)
    engine = Engine(denoiser, denoiser.tokenizer, settings.fill, measure_costs(denoiser))
    return OpenedModel(engine, model.path, denoiser.threads)


def check_decoder(decoder: DecoderName | None, settings: Settings) -> None:
    """Nobody tells a server how to decode.

    Raises:
        UsageError: somebody tries.
    """
    if decoder is not None and settings.backend == REMOTE:
        raise UsageError("--decoder is the server's own matter where backend is remote: leave it out")


def remote_options(settings: RemoteSettings) -> dict[str, Any]:
    """What a run's header must say of a server, as plain JSON values: how it is asked, and nothing to get in with."""
    tree = attrs.asdict(settings)
    extra = hashlib.sha256(settings.extra.encode()).hexdigest()[:16] if settings.extra else None
    return {REMOTE: {**{name: tree[name] for name in _ASKED}, "extra_sha256": extra}}


def remote_notes(settings: RemoteSettings, time: str = "is in none of the numbers") -> tuple[str, ...]:
    """What a reader of a server's numbers must know; `time` says what stands for the model's."""
    return (
        f"{REMOTE} is {settings.url} by {settings.api}: its times are a client's, the way there and back included.",
        f"Steps and tokens are as far as the server tells them; the model's own time {time}.",
    )
