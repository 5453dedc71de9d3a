"""Where a backend meets an engine. The runtime is loaded with the first model, not with this module."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import typer

from dg_lsp.canvas.spec import Checkpoint, ModelSpec
from dg_lsp.engine.decoder_selection import measure_costs
from dg_lsp.engine.engine import Engine
from dg_lsp.models.metadata import describe, read_folder
from dg_lsp.models.registry import AUTO, known_names, locate, memory_pools, ready_path, select
from dg_lsp.settings import Settings, file_settings, parse_settings, settings_file
from dg_lsp.system import system_free

if TYPE_CHECKING:
    from dg_lsp.backends.llamacpp import LlamaModel
    from dg_lsp.backends.llamacpp.loader import OpenedDenoiser
    from dg_lsp.backends.transformers.denoiser import TransformersDenoiser


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights in memory, or a checkpoint's directory that was found whole, and what they say of themselves."""

    path: Path
    weights: "LlamaModel | Checkpoint"
    spec: ModelSpec

    def facts(self) -> dict[str, Any]:
        """The model as `doctor` and `models show` print it; plain JSON values."""
        spec, sampling = self.spec, self.spec.sampling
        return {
            "name": spec.name,
            "path": str(self.path),
            "size_bytes": self.weights.size_bytes,
            "description": self.weights.description,
            "noise": spec.noise,
            "prompt_format": spec.prompt_format.value,
            "vocab_size": spec.vocab_size,
            "canvas_lengths": list(spec.canvas_lengths),
            "max_prompt_tokens": spec.max_prompt_tokens,
            "confidence_threshold": sampling.confidence_threshold if sampling else None,
            "max_denoising_steps": sampling.max_denoising_steps if sampling else None,
        }


def with_model_chosen(settings: Settings) -> Settings:
    """The settings with the model that `auto` is on this machine; it is said on standard error why."""
    if settings.model != AUTO:
        return settings
    from dg_lsp.backends.llamacpp import devices

    found = devices() if settings.runtime.gpu_layers else ()
    gpus = [(device.name, device.kind, device.memory_free) for device in found]
    chosen = select(memory_pools(gpus, system_free()), lambda preset: ready_path(preset) is not None)
    typer.echo(f"dg-lsp: {AUTO} takes {chosen.name}: {chosen.reason}", err=True)
    return attrs.evolve(settings, model=chosen.name)


def load_model(settings: Settings) -> LoadedModel:
    """Locates, loads and describes the model of the settings.

    Raises:
        ModelError: no such model, broken, unsupported, or too large.
        BackendError: the runtime cannot be loaded.
    """
    settings = with_model_chosen(settings)
    path = locate(settings.model)
    name = settings.model if settings.model in known_names() else path.stem
    if path.is_dir():
        return LoadedModel(path, *read_folder(path, name if name == settings.model else ""))

    from dg_lsp.backends.llamacpp import LlamaModel

    weights = LlamaModel.load(path, settings.runtime)
    try:
        describes_itself = "dg.version" in weights.metadata
        specials = None if describes_itself else weights.tokenizer.specials()
        spec = describe(weights.metadata, weights.vocab_size, name, specials)
    except BaseException:
        weights.close()
        raise
    return LoadedModel(path, weights, spec)


def open_denoiser(model: LoadedModel, settings: Settings) -> "OpenedDenoiser | TransformersDenoiser":
    """The model's KV cache and step; closes the weights when it cannot be made.

    Raises:
        ModelError: no memory for it, or no cache where the settings want one.
        BackendError: transformers is needed and cannot be loaded.
    """
    if isinstance(model.weights, Checkpoint):
        from dg_lsp.backends.transformers import open_checkpoint

        return open_checkpoint(model.weights, model.spec, settings.runtime)
    from dg_lsp.backends.llamacpp.loader import denoiser_for

    try:
        return denoiser_for(model.weights, model.spec, settings.runtime)
    except BaseException:
        model.weights.close()
        raise


def open_engine(settings: Settings) -> Engine:
    """An engine that is ready for its first request.

    Raises:
        ModelError: no such model, broken, unsupported, or no memory for it.
        BackendError: the runtime cannot be loaded.
        SettingsError: a remote server is wanted, and it is not said where it is or how to get in.
    """
    if settings.backend == "remote":
        from dg_lsp.backends.remote.client import open_remote
        from dg_lsp.engine.remote_engine import RemoteEngine

        return RemoteEngine(open_remote(settings.remote), settings.fill)
    denoiser = open_denoiser(load_model(settings), settings)
    return Engine(denoiser, denoiser.tokenizer, settings.fill, measure_costs(denoiser))


def overrides(
    *,
    model: str | None,
    gpu_layers: int | None,
    threads: int | None,
    prompt_format: str | None = None,
    remote: str | None = None,
) -> dict[str, Any]:
    """The settings tree of what was given on the command line. With a remote server, the model is one of its own."""
    runtime = {"gpu_layers": gpu_layers, "threads": threads}
    tree: dict[str, Any] = {"runtime": {key: value for key, value in runtime.items() if value is not None}}
    if prompt_format is not None:
        tree["fill"] = {"prompt_format": str(prompt_format)}
    if remote is not None:
        there = {"url": remote} if model is None else {"url": remote, "model": model}
        return {**tree, "backend": "remote", "remote": there}
    return tree if model is None else {**tree, "model": model, "backend": "local"}


def configure(over: Mapping[str, Any]) -> Settings:
    """Defaults, then the settings file of the working directory's tree, then `over`.

    Raises:
        SettingsError: the file or a value is bad.
    """
    path = settings_file(Path.cwd())
    return parse_settings(over, file_settings(path, known_names()) if path else None)
