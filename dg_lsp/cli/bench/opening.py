"""The model that a benchmark measures, with what its report says of it."""

from dataclasses import dataclass
from pathlib import Path

from dg_lsp.cli import loading
from dg_lsp.engine.costs import measure_costs
from dg_lsp.engine.engine import Engine
from dg_lsp.settings import Settings


@dataclass(frozen=True, slots=True, eq=False)
class OpenedModel:
    """An engine and where it comes from."""

    engine: Engine
    path: Path
    threads: int
    """CPU threads of a step."""


def open_model(settings: Settings) -> OpenedModel:
    """Loads the model of the settings, ready for its first request as in an editor: `auto` knows what steps cost here.

    Raises:
        ModelError: no such model, broken, unsupported, or no memory for it.
        BackendError: the runtime cannot be loaded.
    """
    model = loading.load_model(settings)
    denoiser = loading.open_denoiser(model, settings)
    engine = Engine(denoiser, denoiser.tokenizer, settings.fill, measure_costs(denoiser))
    return OpenedModel(engine, model.path, denoiser.threads)
