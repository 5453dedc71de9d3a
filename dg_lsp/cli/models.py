"""`dg-lsp models`: list, recommend, show and remove models. The other commands are in pull.py and conversion.py."""

from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any

from typer import Argument

from dg_lsp.canvas.fim import FIM_FAMILIES
from dg_lsp.cli import loading, setup
from dg_lsp.cli.options import Json, ModelOptions, configure
from dg_lsp.cli.printing import note, print_facts, print_json, print_line, print_lines, print_table, size_text
from dg_lsp.errors import DgLspError, UsageError
from dg_lsp.models import registry
from dg_lsp.models.download import explained_disk_errors
from dg_lsp.models.registry import Preset, is_begun
from dg_lsp.models.selection import Machine, fit
from dg_lsp.settings import parse_settings

_HEADER = ("model", "here", "fits here", "size", "made for", "licence")


def list_models(as_json: Json = False) -> int:
    """List the known models: whether each is here and fits, its size, hardware and licence."""
    configure({})
    machine = _machine()
    models = [_listed(preset, machine) for preset in (*registry.BUNDLED, *registry.PRESETS)]
    if as_json:
        print_json(models)
        return 0
    rows = [_HEADER]
    for facts in models:
        here = "yes" if facts["path"] else "in part" if facts["is_begun"] else "no"
        hardware = facts["hardware"].removesuffix(" of memory")
        licence = facts["licence"].partition(" (")[0]
        rows.append((facts["name"], here, facts["fit"], size_text(facts["size_bytes"]), hardware, licence))
    print_table(rows)
    print_lines(
        ("", "dg-lsp models show MODEL describes one, dg-lsp models recommend names the best for this machine.")
    )
    return 0


def _machine() -> Machine:
    try:
        return loading.this_machine()
    except DgLspError:  # without llama.cpp the facts are still useful; `doctor` reports the problem
        return loading.this_machine(with_gpu=False)


def _listed(preset: Preset, machine: Machine) -> dict[str, Any]:
    return {
        "name": preset.name,
        "kind": "diffusion" if preset.is_diffusion else "autoregressive",
        "path": str(preset.path) if preset.path else None,
        "is_begun": is_begun(preset),
        "fit": fit(preset, machine),
        "size_bytes": preset.size,
        "memory_bytes": preset.memory_bytes,
        "quantization": preset.quantization,
        "hardware": preset.hardware,
        "licence": preset.licence,
        "note": preset.note,
    }


def recommend_models(as_json: Json = False) -> int:
    """Measure this machine, and name the best autoregressive and the best diffusion model for it."""
    configure({})
    plan = setup.measure()
    if as_json:
        print_json(plan.tree)
        return 0
    print_facts(plan.tree)
    if plan.unused is not None:
        note(plan.unused.unused_message)
    return 0


def show_model(
    model: Annotated[
        str | None, Argument(metavar="MODEL", help="A name, or the path of a GGUF file; default: that of the settings.")
    ] = None,
) -> int:
    """Show a model's file, specification and metadata; or, before it is pulled, its preset."""
    settings = loading.with_model_chosen(configure(ModelOptions(model=model).tree))
    preset = registry.preset_named(settings.model.name)
    if preset is not None:
        print_facts(_details(preset))
        if preset.path is None:
            return 0
        print_line("from the file:")
    # nothing is computed, so no layer goes to a GPU
    loaded = loading.load_model(parse_settings(ModelOptions(gpu_layers=0).tree, settings))
    with closing(loaded.weights):
        facts = loaded.facts()
    if loaded.spec.fim is not None and (family := FIM_FAMILIES.get(loaded.spec.fim.family)):
        facts |= {"fim_prompt": family.prompt, "fim_sources": family.sources}
    print_facts(facts)
    for key, value in loaded.spec.metadata:
        print_line(f"  {key} = {value}")
    if loaded.warning:
        note(loaded.warning)
    return 0


def _details(preset: Preset) -> dict[str, Any]:
    """What `models list --json` has, where the model comes from, and its family."""
    pin = registry.read_pin(preset)
    facts = _listed(preset, _machine()) | {
        "repository": preset.repository,
        "revision": preset.revision,
        "pinned_commit": pin.commit if pin else "",
        "files": preset.patterns,
        "sha256": preset.sha256,
        "download_bytes": preset.download_size,
        "quality": preset.quality,
        "quality_source": preset.quality_source,
        "terms": preset.terms,
        "sources": preset.sources,
        "family": asdict(preset.family) if preset.family else None,
    }
    return {name: value for name, value in facts.items() if value}


def remove_model(name: Annotated[str, Argument(metavar="NAME", help="A name from `dg-lsp models list`.")]) -> int:
    """Remove a pulled model, or the parts of an interrupted download."""
    configure({})
    preset = registry.preset_named(name)
    if preset is None:
        problem = f"{name} cannot be pulled or removed{registry.suggestion(name)}"
        raise UsageError(f"{problem}: use the name of a pulled model from dg-lsp models list")
    if not preset.folder.is_dir():
        raise UsageError(f"{name} is not on this machine: there is nothing to remove")
    with explained_disk_errors(preset.folder, "close the programs that use the model"):
        freed = registry.remove(preset)
    print_line(f"removed {preset.folder} ({size_text(freed)})")
    return 0
