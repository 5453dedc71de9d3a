"""`dg-lsp models`: list, show and remove models. The other commands are in pull.py and conversion.py."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument

from dg_lsp.cli import conversion, loading
from dg_lsp.cli.loading import configure
from dg_lsp.cli.options import Json, overrides
from dg_lsp.cli.printing import note, print_facts, print_json, print_line, print_lines, print_table, size_text
from dg_lsp.cli.pull import pull_model
from dg_lsp.errors import DgLspError, UsageError

if TYPE_CHECKING:
    from dg_lsp.canvas.fim import FimFamily
    from dg_lsp.models.registry import Preset

_HEADER = ("model", "here", "fits here", "kind", "size", "memory", "made for", "licence", "description")
app = typer.Typer(help="List, recommend, show, pull, remove and convert models.")


@app.command("list", epilog="Example: dg-lsp models list --json")
def list_models(as_json: Json = False) -> int:
    """List the known models: whether each is here and fits, kind, size, memory, hardware, licence and description."""
    from dg_lsp.models import registry
    from dg_lsp.models.selection import fit

    configure({})
    try:
        machine = loading.this_machine()
    except DgLspError:  # without llama.cpp the list is still useful; `doctor` reports the problem
        machine = loading.this_machine(with_gpu=False)
    models = [
        {
            "name": preset.name,
            "kind": "diffusion" if preset.is_diffusion else "autoregressive",
            "path": str(preset.path) if preset.path else None,
            "is_begun": registry.is_begun(preset),
            "fit": fit(preset, machine),
            "size_bytes": preset.size,
            "memory_bytes": preset.memory_bytes,
            "quantization": preset.quantization,
            "hardware": preset.hardware,
            "licence": preset.licence,
            "note": preset.note,
        }
        for preset in (*registry.BUNDLED, *registry.PRESETS)
    ]
    if as_json:
        print_json(models)
        return 0
    left_out = print_table([_HEADER, *map(_row, models)], spare=("description", "kind", "memory"))
    hint = f" A wider terminal, or --json, shows {', '.join(left_out)}." if left_out else ""
    print_lines(
        f"\ndg-lsp models pull MODEL gets one, dg-lsp models recommend measures this machine and names the best.{hint}"
    )
    return 0


def _row(facts: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        facts["name"],
        "yes" if facts["path"] else "in part" if facts["is_begun"] else "no",
        facts["fit"],
        facts["kind"],
        size_text(facts["size_bytes"]),
        size_text(facts["memory_bytes"]),
        facts["hardware"].removesuffix(" of memory"),
        facts["licence"].partition(" (")[0],
        facts["note"],
    )


@app.command("recommend", epilog="Example: dg-lsp models recommend")
def recommend_models(as_json: Json = False) -> int:
    """Measure this machine, and name the best autoregressive and the best diffusion model for it."""
    from dg_lsp.cli.setup import show_recommendation

    configure({})
    show_recommendation(as_json=as_json)
    return 0


@app.command("show", epilog="Example: dg-lsp models show dg-base")
def show_model(
    model: Annotated[
        str | None, Argument(metavar="MODEL", help="A name, or the path of a GGUF file; default: that of the settings.")
    ] = None,
) -> int:
    """Show a model's file, specification and metadata; or, before it is pulled, its preset."""
    from dg_lsp.canvas.fim import FIM_FAMILIES
    from dg_lsp.models import registry
    from dg_lsp.settings import parse_settings

    settings = loading.with_model_chosen(configure(overrides(model=model)), advises=True)
    preset = registry.preset_named(settings.model.name)
    if preset is not None:
        print_facts(_facts(preset))
        if preset.path is None:
            return 0
        print_line("from the file:")
    # nothing is computed, so no layer goes to a GPU
    loaded = loading.load_model(parse_settings(overrides(gpu_layers=0), settings))
    with closing(loaded.weights):
        facts = [*loaded.facts().items()]
    if loaded.spec.fim is not None and (family := FIM_FAMILIES.get(loaded.spec.fim.family)):
        facts += _fim_facts(family)
    print_facts(facts)
    for key, value in loaded.spec.metadata:
        print_line(f"  {key} = {value}")
    if loaded.warning:
        note(loaded.warning)
    return 0


app.command("pull", epilog="Example: dg-lsp models pull qwen2.5-coder-0.5b")(pull_model)


@app.command("rm", epilog="Example: dg-lsp models rm qwen2.5-coder-0.5b")
def remove_model(name: Annotated[str, Argument(metavar="NAME", help="A name from `dg-lsp models list`.")]) -> int:
    """Remove a pulled model, or the parts of an interrupted download."""
    from dg_lsp.models import registry
    from dg_lsp.models.download import explained_disk_errors

    configure({})
    preset = registry.preset_named(name)
    if preset is None:
        is_bundled = name in (model.name for model in registry.BUNDLED)
        problem = "is bundled and stays" if is_bundled else f"is not a known model{registry.suggestion(name)}"
        raise UsageError(f"{name} {problem}: use the name of a pulled model from dg-lsp models list")
    if not preset.folder.is_dir():
        raise UsageError(f"{name} is not on this machine: there is nothing to remove")
    with explained_disk_errors(preset.folder, "close the programs that use the model"):
        freed = registry.remove(preset)
    print_line(f"removed {preset.folder} ({size_text(freed)})")
    return 0


app.command("convert", epilog="Example: dg-lsp models convert checkpoint -o model.gguf")(conversion.convert_model)
app.command("build-runtime", epilog="Example: dg-lsp models build-runtime --backend cuda")(conversion.build_runtime)


def _fim_facts(family: "FimFamily") -> Iterator[tuple[str, object]]:
    yield "fim_prompt", family.prompt
    if family.file:
        yield "fim_files", (family.repository + family.file).replace("\n", "\\n")
    if family.temperature is not None:
        yield "fim_temperature", f"{family.temperature:g}, recommended by its authors"
    for source in family.sources:
        yield "fim_source", source


def _facts(preset: "Preset") -> Iterator[tuple[str, object]]:
    from dg_lsp.models import registry

    family, pin = preset.family, registry.read_pin(preset)
    recorded = (
        f"that of the first download, commit {pin.commit}" if pin else "the hub's, recorded at the first download"
    )
    begun = "not complete" if registry.is_begun(preset) else "not here"
    moving = ", whose commit is recorded at the first download" if preset.revision == "main" else ""
    facts: dict[str, object] = {
        "name": preset.name,
        "description": preset.note,
        "location": preset.path or f"{begun} yet: dg-lsp models pull {preset.name}",
        "repository": preset.repository and f"{preset.repository} at {preset.revision}{moving}",
        "files": ", ".join(preset.patterns),
        "sha256": preset.sha256 or recorded,
        "quantization": preset.quantization,
        "size_bytes": preset.size,
        "download": preset.download_size and f"{preset.download_size / 1e9:.2f} GB, converted and quantized here",
        "memory": f"{size_text(preset.memory_bytes)} with the prompt's cache",
        "hardware": preset.hardware,
        "right lines": preset.quality and f"{100 * preset.quality:g}%, {preset.quality_source}",
        "licence": preset.licence,
        "terms": preset.terms,
        "noise": preset.noise,
    }
    if family is not None:
        facts |= {
            "architecture": family.architecture,
            "mask id": str(family.mask_id) if family.mask_id is not None else "",
            "prompt format": family.prompt_format.value,
            "canvas lengths": ", ".join(map(str, family.canvas_lengths)),
            "gap lengths": ", ".join(map(str, family.gap_lengths)),
            "steps": f"{family.sampling.max_denoising_steps} at most",
        }
    yield from ((name, value) for name, value in facts.items() if value)
    for source in (*preset.sources, *(family.sources if family else ())):
        yield "source", source
