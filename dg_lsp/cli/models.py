"""`dg-lsp models`: list, show and remove models. The other commands are in pull.py and conversion.py."""

from collections.abc import Iterator
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
    from dg_lsp.models.registry import Family, Preset
    from dg_lsp.models.selection import Machine

app = typer.Typer(help="List, recommend, show, pull, remove and convert models.")


@app.command("list", epilog="Example: dg-lsp models list --json")
def list_models(as_json: Json = False) -> int:
    """List the known models: whether each is here and fits, kind, size, memory, hardware, licence and description."""
    from dg_lsp.models import registry

    configure({})
    try:
        machine = loading.this_machine()
    except DgLspError:  # without llama.cpp the list is still useful; `doctor` reports the problem
        machine = loading.this_machine(with_gpu=False)
    models = [_listed(preset, machine) for preset in (*registry.BUNDLED, *registry.PRESETS)]
    if as_json:
        print_json(models)
        return 0
    rows = [("model", "here", "fits here", "kind", "size", "memory", "made for", "licence", "description")]
    for facts in models:
        sizes = (size_text(facts["size_bytes"]), size_text(facts["memory_bytes"]))
        here = "yes" if facts["path"] else "in part" if facts["is_begun"] else "no"
        uses = (facts["hardware"].removesuffix(" of memory"), facts["licence"].partition(" (")[0], facts["note"])
        rows.append((facts["name"], here, facts["fit"], facts["kind"], *sizes, *uses))
    left_out = print_table(rows, spare=("description", "kind", "memory"))
    hint = f" A wider terminal, or --json, shows {', '.join(left_out)}." if left_out else ""
    print_lines(
        f"\ndg-lsp models pull MODEL gets one, dg-lsp models recommend measures this machine and names the best.{hint}"
    )
    return 0


def _listed(preset: "Preset", machine: "Machine") -> dict[str, Any]:
    """Keys in the documented order."""
    from dg_lsp.models.selection import fit

    path = preset.path
    return {
        "name": preset.name,
        "kind": "diffusion" if preset.is_diffusion else "autoregressive",
        "path": str(path) if path else None,
        "is_begun": path is None and _is_begun(preset),
        "fit": fit(preset, machine),
        "size_bytes": preset.size,
        "memory_bytes": preset.memory_bytes,
        "quantization": preset.quantization,
        "hardware": preset.hardware,
        "licence": preset.licence,
        "note": preset.note,
    }


def _is_begun(preset: "Preset") -> bool:
    from dg_lsp.models import registry

    return registry.fetched_path(preset) is not None or preset.unquantized_path.is_file()


def _location(preset: "Preset") -> str:
    """The path of the preset's model, or the command that gets it."""
    if (ready := preset.path) is not None:
        return str(ready)
    return f"{'not complete' if _is_begun(preset) else 'not here'} yet: dg-lsp models pull {preset.name}"


@app.command("recommend", epilog="Example: dg-lsp models recommend")
def recommend_models(as_json: Json = False) -> int:
    """Measure this machine, and name the best autoregressive and the best diffusion model for it."""
    from dg_lsp.cli.recommend import show_recommendation

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
    yield "name", preset.name
    yield "description", preset.note
    yield "location", _location(preset)
    if preset.repository:
        moving = ", whose commit is recorded at the first download" if preset.revision == "main" else ""
        yield "repository", f"{preset.repository} at {preset.revision}{moving}"
    yield "files", ", ".join(preset.patterns)
    yield "sha256", preset.sha256 or _pinned(preset)
    yield "quantization", preset.quantization
    yield "size_bytes", preset.size
    if preset.download_size:
        yield "download", f"{preset.download_size / 1e9:.2f} GB, converted and quantized here"
    yield "memory", f"{size_text(preset.memory_bytes)} with the prompt's cache"
    yield "hardware", preset.hardware
    if preset.quality:
        yield "right lines", f"{100 * preset.quality:g}%, {preset.quality_source}"
    yield "licence", preset.licence
    if preset.terms:
        yield "terms", preset.terms
    yield "noise", preset.noise
    if preset.family is not None:
        yield from _family_facts(preset.family)
    for source in (*preset.sources, *(preset.family.sources if preset.family else ())):
        yield "source", source


def _pinned(preset: "Preset") -> str:
    from dg_lsp.models import registry

    pin = registry.read_pin(preset)
    return f"that of the first download, commit {pin.commit}" if pin else "the hub's, recorded at the first download"


def _family_facts(family: "Family") -> Iterator[tuple[str, object]]:
    yield "architecture", family.architecture
    if family.mask_id is not None:
        yield "mask id", family.mask_id
    yield "prompt format", family.prompt_format.value
    yield "canvas lengths", ", ".join(map(str, family.canvas_lengths))
    if family.gap_lengths:
        yield "gap lengths", ", ".join(map(str, family.gap_lengths))
    yield "steps", f"{family.sampling.max_denoising_steps} at most"
