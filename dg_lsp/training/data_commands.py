"""The commands that make and carry data: data, benchmarks, pack, unpack, sites. Knows no torch."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from dg_lsp.training.benchmarks import HASHES, read_problems, run_hashes, write_hashes
from dg_lsp.training.packing import pack, unpack
from dg_lsp.training.prepare import prepare, read_texts
from dg_lsp.training.sites import Split, held_out_sites, write_sites
from dg_lsp.training.tokenizer import load_tokenizer

BUNDLED = Path(__file__).parents[1] / "models" / "dg-mini.gguf"

data_app = typer.Typer()


def default_root() -> Path:
    """Where downloads and products live: $DG_LSP_TRAINING_ROOT, else the cache folder."""
    return Path(os.environ.get("DG_LSP_TRAINING_ROOT") or Path.home() / ".cache" / "dg-lsp" / "training")


Root = Annotated[Path, typer.Option(default_factory=default_root, help="Work folder; $DG_LSP_TRAINING_ROOT.")]


@data_app.command()
def data(
    root: Root,
    offline: Annotated[bool, typer.Option(help="Use the wheels that are there.")] = False,
    vocabulary: Annotated[
        Path | None,
        typer.Option("--tokenizer-of", help="A GGUF whose tokenizer is kept; by default the bundled model."),
    ] = None,
    new_tokenizer: Annotated[bool, typer.Option("--new-tokenizer", help="Train a tokenizer on the corpus.")] = False,
    processes: Annotated[int, typer.Option(help="Processes that read and clean; 0: one for each core.")] = 0,
) -> None:
    """Fetch the pinned packages, clean and split their sources, tokenize them."""
    kept = vocabulary or (BUNDLED if BUNDLED.exists() else None)
    manifest = prepare(root, offline=offline, vocabulary=None if new_tokenizer else kept, processes=processes)
    shown_keys = ("dropped", "refused_licences", "not_available", "tokens")
    print(json.dumps({key: manifest[key] for key in shown_keys}, indent=1))


@data_app.command()
def benchmarks(
    files: Annotated[list[Path], typer.Argument(help="HumanEval-Infilling or MBPP, JSON or JSON lines.")],
) -> None:
    """Write the hashes by which files with a benchmark's text are left out of the corpus."""
    hashes = run_hashes(problem for file in files for problem in read_problems(file))
    write_hashes(hashes)
    print(f"{HASHES}: {len(hashes)} runs of ten words")


@data_app.command(name="pack")
def pack_corpus(root: Root, out: Annotated[Path, typer.Option(help="Where the pieces go.")]) -> None:
    """Write the corpus as pieces of at most 60 MiB, to carry it to another machine."""
    for piece in pack(root, out):
        print(f"{piece}: {piece.stat().st_size / 2**20:.1f} MiB")


@data_app.command(name="unpack")
def unpack_corpus(root: Root, pieces: Annotated[Path, typer.Option(help="Where the pieces are.")]) -> None:
    """Join the pieces of `pack` and tokenize them again."""
    print(json.dumps({"tokens": unpack(pieces, root)}))


@data_app.command()
def sites(
    root: Root,
    out: Annotated[Path, typer.Option(help="The JSON lines to write, gzip.")],
    split: Annotated[Split, typer.Option(help="`report`, or `tune`: other lines, for thresholds.")] = Split.REPORT,
) -> None:
    """Write 1,000 places of the held-out packages in the format of HumanEval-Infilling."""
    tokenizer = load_tokenizer(root / "tokenizer.json")
    found = held_out_sites(read_texts(root / "val.jsonl.xz"), lambda text: tokenizer.encode(text).ids, split)
    write_sites(out, found)
    print(f"{out}: {len(found)} sites, {out.stat().st_size / 2**20:.1f} MiB")
