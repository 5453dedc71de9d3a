"""Command line of the training: `python -m dg_training COMMAND`."""

import gzip
import json
from pathlib import Path
from typing import Annotated

import typer

from dg_lsp.bench.dataset import Source, useful_cases, write_cases
from dg_lsp.context.languages import language_id_of
from dg_lsp.errors import InputFileError
from dg_lsp.system import replacement
from dg_training import adapt as adaptation
from dg_training import filters, gpu_day
from dg_training.next_edits import fit_repositories, write_weights
from dg_training.options import Causal, Device, FileType, Name, Root, device_of
from dg_training.store import read_texts
from dg_training.train import AdaptOptions

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(gpu_day.app, name="gpu-day")


@app.command()
def data(
    root: Root,
    processes: Annotated[int, typer.Option(help="Processes that read and filter; 0: one for each core.")] = 0,
) -> None:
    """Download the pinned packages, filter, deduplicate and split their sources."""
    from dg_training import corpus  # needs datasketch, which the machine of a GPU day lacks

    manifest = corpus.prepare(root, num_processes=processes)
    print(json.dumps({key: value for key, value in manifest.items() if key != "sources"}, indent=1))


@app.command(name="next-edits")
def fit_next_edits(
    repositories: Annotated[list[Path], typer.Argument(help="Folders of git repositories.")],
    out: Annotated[Path, typer.Option(help="The file of weights to write.")],
    number: Annotated[int, typer.Option(help="Changed files of each repository.")] = 400,
) -> None:
    """Fit the weights by which a repetition of the last edits is believed."""
    weights, num_examples = fit_repositories(repositories, number)
    write_weights(out, weights)
    print(f"{out}: {len(weights)} weights of {num_examples} examples")


@app.command(name="test-cases")
def write_test_cases(
    root: Root,
    out: Annotated[Path, typer.Option(help="The file to write: JSON lines, gzip.")],
    language: Annotated[str, typer.Option(help="Language of the corpus, by its LSP id.")] = filters.PYTHON,
    number: Annotated[int, typer.Option(help="Number of test cases.", min=1)] = 600,
    seed: Annotated[int, typer.Option(help="Of the places that are cut out.")] = 0,
) -> None:
    """Write test cases of the validation packages, cut as by `dg-lsp bench cut`."""
    sources = [
        Source(f"{file.package}/{file.path}", file.text, language_id_of(file.path, file.text))
        for file in read_texts(root / "val.jsonl.xz")
        if filters.language_of_file(file.path, file.text) == language
    ]
    if not sources:
        raise InputFileError(f"the validation packages have no {language}")
    cases = useful_cases(sources, number, seed)
    with replacement(out) as new:
        write_cases(cases, new)
        new.write_bytes(gzip.compress(new.read_bytes(), mtime=0))
    print(f"{out}: {len(cases)} test cases, {out.stat().st_size / 2**20:.1f} MiB")


@app.command()
def adapt(
    checkpoint: Annotated[Path, typer.Argument(help="A GGUF file.")],
    root: Root,
    out: Annotated[Path, typer.Option(help="The GGUF to write; a model card is written beside it.")],
    minutes: Annotated[float, typer.Option(help="Planned length; the learning rate falls to zero.")] = 60,
    steps: Annotated[int | None, typer.Option(help="At most so many steps; 0: export only.")] = None,
    tokens: Annotated[int, typer.Option(help="Size of the pruned vocabulary.", min=512, max=65_536)] = 32_768,
    rate: Annotated[float, typer.Option(help="Largest learning rate.")] = 2e-4,
    causal: Causal = False,
    name: Name = "",
    licence: Annotated[str, typer.Option(help="Identifier of the checkpoint's licence, if it states none.")] = "",
    file_type: FileType = "Q8_0",
    resume: Annotated[bool, typer.Option(help="Continue from the checkpoint of the run.")] = False,
    device: Device = "",
) -> None:
    """Teach a pretrained causal model to fill in the middle and to denoise a canvas, and export it."""
    options = AdaptOptions(
        minutes=minutes,
        max_steps=steps,
        num_tokens=tokens,
        learning_rate=rate,
        is_causal=causal,
        name=name,
        licence=licence,
        file_type=file_type,
        device=device_of(device),
        is_resumed=resume,
    )
    adaptation.adapt(checkpoint, root, out, options, lambda report: print(json.dumps(report), flush=True))
    print(f"{out}: {out.stat().st_size / 2**20:.1f} MiB; {out.with_suffix('.md')} states what may be passed on")
