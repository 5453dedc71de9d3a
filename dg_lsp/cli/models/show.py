"""`dg-lsp models show`: what is known of a model, and what it says of itself."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dg_lsp.models.presets import Family, Preset


def show_model(
    model: Annotated[str | None, typer.Argument(help="A name or the path of a GGUF file; the default model.")] = None,
) -> int:
    """Show a model's file, its spec and its metadata; of one that is not here what is known of it."""
    from dg_lsp.cli import loading
    from dg_lsp.cli.loading import configure, overrides
    from dg_lsp.models.registry import preset_named, ready_path

    settings = loading.with_model_chosen(configure(overrides(model=model, gpu_layers=None, threads=None)))
    preset = preset_named(settings.model)
    if preset is not None:
        for key, value in _record(preset):
            typer.echo(f"{key}: {value}")
        if ready_path(preset) is None:
            return 0
        typer.echo("the file says:")
    # nothing is computed here, so nothing has to go to a GPU
    loaded = loading.load_model(configure(overrides(model=settings.model, gpu_layers=0, threads=None)))
    loaded.weights.close()
    for key, value in loaded.facts().items():
        typer.echo(f"{key}: {value}")
    for key, value in loaded.spec.metadata:
        typer.echo(f"  {key} = {value}")
    return 0


def _record(preset: "Preset") -> Iterator[tuple[str, object]]:
    from dg_lsp.cli.models.listing import whereabouts

    yield "name", preset.name
    yield "what it is", preset.note
    yield "where", whereabouts(preset)
    yield "repository", f"{preset.repository} at {preset.revision}"
    yield "files", ", ".join(preset.patterns)
    yield "sha256", preset.sha256 or "what the hub says when it is fetched"
    yield "quantization", preset.quantization
    yield "size", f"{preset.size / 1e9:.2f} GB"
    yield "memory", f"{preset.memory_bytes / 1e9:.1f} GB with the prompt's cache"
    yield "licence", f"{preset.licence} ({preset.terms})" if preset.terms else preset.licence
    yield "noise", preset.noise
    if preset.family is not None:
        yield from _asking(preset.family)
    for source in (*preset.sources, *(preset.family.sources if preset.family else ())):
        yield "source", source


def _asking(family: "Family") -> Iterator[tuple[str, object]]:
    yield "architecture", family.architecture
    if family.mask_id is not None:
        yield "mask id", family.mask_id
    yield "prompt format", family.prompt_format.value
    yield "canvas lengths", ", ".join(map(str, family.canvas_lengths))
    if family.gap_lengths:
        yield "hole lengths", ", ".join(map(str, family.gap_lengths))
    yield "steps", f"{family.sampling.max_denoising_steps} at most"
