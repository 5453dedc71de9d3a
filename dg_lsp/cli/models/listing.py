"""`dg-lsp models list`: the models known by name."""

import typer


def list_models() -> int:
    """List the models known by name, with sizes and paths."""
    from dg_lsp.models.packaged import PACKAGED
    from dg_lsp.models.registry import BUNDLED

    for model in BUNDLED:
        size = f"{model.path.stat().st_size / 1e6:.1f} MB" if model.path.is_file() else "missing"
        typer.echo(f"{model.name}  {size}  {model.path}")
    for packaged in PACKAGED:
        where = packaged.path if packaged.path.is_file() else f"not here yet: dg-lsp models pull {packaged.name}"
        typer.echo(
            f"{packaged.name}  {packaged.size / 1e6:.1f} MB  {where}  ({packaged.note}; {packaged.licence.name})"
        )
    return 0
