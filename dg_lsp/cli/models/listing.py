"""`dg-lsp models list`: the models known by name."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from dg_lsp.models.presets import Preset


def list_models() -> int:
    """List the models known by name: size, where it lies or how to get it, what it is, memory and licence."""
    from dg_lsp.models.presets import PACKAGED, PRESETS
    from dg_lsp.models.registry import BUNDLED

    for model in BUNDLED:
        size = f"{model.path.stat().st_size / 1e6:.1f} MB" if model.path.is_file() else "missing"
        typer.echo(f"{model.name}  {size}  {model.path}")
    for packaged in PACKAGED:
        where = packaged.path if packaged.path.is_file() else f"not here yet: dg-lsp models pull {packaged.name}"
        typer.echo(
            f"{packaged.name}  {packaged.size / 1e6:.1f} MB  {where}  ({packaged.note}; {packaged.licence.name})"
        )
    for preset in PRESETS:
        typer.echo(_row(preset))
    return 0


def _row(preset: "Preset") -> str:
    facts = (preset.note, preset.quantization, f"needs {preset.memory_bytes / 1e9:.1f} GB of memory", preset.licence)
    return f"{preset.name}  {preset.size / 1e9:.1f} GB  {whereabouts(preset)}  ({'; '.join(facts)})"


def whereabouts(preset: "Preset") -> str:
    """Where the preset's model lies, or what to do to have it there."""
    from dg_lsp.models.download import fetched_path
    from dg_lsp.models.registry import ready_path

    if (ready := ready_path(preset)) is not None:
        return str(ready)
    if (fetched := fetched_path(preset)) is not None:
        return f"fetched, to be made ready once: {preset.command(fetched)}"
    return f"not here yet: dg-lsp models pull {preset.name}"
