"""Command line of the training: `python -m dg_training COMMAND`."""

import gzip
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dg_lsp.errors import DgLspError

DEFAULT_ROOT = Path.home() / ".cache" / "dg-lsp" / "training"

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
gpu_day = typer.Typer(no_args_is_help=True, help="Train on a machine without a network that is yours for some minutes.")
app.add_typer(gpu_day, name="gpu-day")

Root = Annotated[
    Path, typer.Option(default_factory=lambda: DEFAULT_ROOT, envvar="DG_LSP_TRAINING_ROOT", help="Work folder.")
]
Device = Annotated[str, typer.Option(help="cpu or cuda; default: cuda where available.")]
Causal = Annotated[bool, typer.Option("--causal", help="No canvases: the first stage.")]
Name = Annotated[str, typer.Option(help="Name in the file; default: the checkpoint's.")]
FileType = Annotated[
    Literal["F32", "F16", "Q8_0", "IQ4_NL"],
    typer.Option("--format", help="Of the matrices; the network is trained with weights in IQ4_NL."),
]


def _device(name: str) -> str:
    import torch

    return name or ("cuda" if torch.cuda.is_available() else "cpu")


def _print_report(report: Mapping[str, Any]) -> None:
    print(json.dumps(report), flush=True)


@app.command()
def data(
    root: Root,
    processes: Annotated[int, typer.Option(help="Processes that read and filter; 0: one for each core.")] = 0,
) -> None:
    """Download the pinned packages, filter, deduplicate and split their sources."""
    from dg_training.corpus import prepare

    manifest = prepare(root, num_processes=processes)
    print(json.dumps({key: value for key, value in manifest.items() if key != "sources"}, indent=1))


@app.command()
def benchmarks(
    files: Annotated[list[Path], typer.Argument(help="HumanEval-Infilling or MBPP, as JSON or JSON lines.")],
) -> None:
    """Write the hashes by which `data` finds benchmark text in the corpus."""
    from dg_training.corpus import BENCHMARK_HASHES, write_benchmarks

    print(f"{BENCHMARK_HASHES}: {write_benchmarks(files)} n-grams")


@app.command(name="next-edits")
def fit_next_edits(
    repositories: Annotated[list[Path], typer.Argument(help="Folders of git repositories.")],
    out: Annotated[Path, typer.Option(help="The file of weights to write.")],
    number: Annotated[int, typer.Option(help="Changed files of each repository.")] = 400,
) -> None:
    """Fit the weights by which a repetition of the last edits is believed."""
    from dg_training.next_edits import fit_repositories, write_weights

    weights, num_examples = fit_repositories(repositories, number)
    write_weights(out, weights)
    print(f"{out}: {len(weights)} weights of {num_examples} examples")


@app.command(name="test-cases")
def write_test_cases(
    root: Root,
    out: Annotated[Path, typer.Option(help="The file to write: JSON lines, gzip.")],
    case_set: Annotated[
        Literal["report", "tune"], typer.Option("--set", help="`tune`: other lines, for thresholds.")
    ] = "report",
    language: Annotated[str, typer.Option(help="LSP id of the language.")] = "python",
) -> None:
    """Write test cases of the validation packages in the format of HumanEval-Infilling: 1,000 of Python, else 600.

    Their lengths are limited in tokens of dg-mini, so that they are the same for every model.
    """
    from dg_lsp.bench.dataset import write_cases
    from dg_lsp.gguf import read_header
    from dg_lsp.models.registry import BUNDLED
    from dg_lsp.system import replacement
    from dg_training.cases import draw_cases
    from dg_training.store import read_texts
    from dg_training.tokenizer import read_vocabulary

    bundled = BUNDLED[0].path
    assert bundled is not None
    tokenizer = read_vocabulary(read_header(bundled)).tokenizer()
    files = read_texts(root / "val.jsonl.xz")
    cases = draw_cases(files, lambda text: tokenizer.encode(text).ids, case_set, language=language)
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
    steps: Annotated[int | None, typer.Option(help="At most so many steps; 0: prune and export only.")] = None,
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
    from dg_training.adapt import adapt as run_adapt
    from dg_training.train import AdaptOptions

    options = AdaptOptions(
        minutes=minutes,
        max_steps=steps,
        num_tokens=tokens,
        learning_rate=rate,
        is_causal=causal,
        name=name,
        licence=licence,
        file_type=file_type,
        device=_device(device),
        is_resumed=resume,
    )
    run_adapt(checkpoint, root, out, options, _print_report)
    print(f"{out}: {out.stat().st_size / 2**20:.1f} MiB; {out.with_suffix('.md')} states what may be passed on")


@gpu_day.command()
def pack(
    root: Root,
    to: Annotated[Path, typer.Option(help="The folder of the slices; what is in it is removed.")],
    start: Annotated[Path | None, typer.Option(help="The model file to start with.")] = None,
    size: Annotated[float, typer.Option(help="Largest slice in MiB.")] = 50,
) -> None:
    """Write the corpus that `data` made and the model to start with in slices."""
    from dg_training import gpu_day

    gpu_day.pack(root, to, int(size * gpu_day.MIB), start)
    print("\n".join(f"{path}: {path.stat().st_size / gpu_day.MIB:.1f} MiB" for path in sorted(to.iterdir())))


@gpu_day.command()
def run(
    root: Root,
    out: Annotated[Path, typer.Option(envvar="OUT", help="The folder whose files are copied back.")],
    packed: Annotated[list[Path] | None, typer.Option("--pack", help="A folder of slices; may be repeated.")] = None,
    start: Annotated[Path | None, typer.Option(help="The model file to start with; default: the packed one.")] = None,
    go_on: Annotated[bool, typer.Option("--continue", help="`--start` came from a lost machine: go on there.")] = False,
    minutes: Annotated[float, typer.Option(help="Planned training of the whole run, over all commands.")] = 20,
    part: Annotated[float, typer.Option(help="Minutes of this command; 0: unpack and send only.")] = 9.5,
    every: Annotated[float, typer.Option(help="Minutes from one export to the next.")] = 3,
    size: Annotated[float, typer.Option(help="Largest file in `out` in MiB.")] = 15,
    most: Annotated[float, typer.Option(help="All files in `out` together in MiB.")] = 60,
    rate: Annotated[float, typer.Option(help="Largest learning rate.")] = 4e-4,
    causal: Causal = False,
    file_type: FileType = "IQ4_NL",
    name: Name = "",
    device: Device = "",
) -> None:
    """Unpack and train; the state of the run stays in the work folder, exports go to `out`."""
    from dg_training import gpu_day
    from dg_training.train import AdaptOptions

    options = AdaptOptions(
        minutes=minutes,
        learning_rate=rate,
        is_causal=causal,
        name=name,
        file_type=file_type,
        device=_device(device),
        checkpoint_minutes=every,
        is_continued=go_on,
    )
    parcel = gpu_day.Parcel(out, int(size * gpu_day.MIB), int(most * gpu_day.MIB))
    gpu_day.run(root, packed or [], parcel, options, part_minutes=part, start=start)


@gpu_day.command()
def collect(
    folders: Annotated[list[Path], typer.Argument(help="Folders that came back.")],
    out: Annotated[Path, typer.Option(help="The GGUF to write.")],
) -> None:
    """Join the newest whole export."""
    from dg_training import gpu_day

    facts = gpu_day.collect(folders, out)
    print(f"{out}: {out.stat().st_size / 2**20:.1f} MiB, step {facts['step']}, {facts['tokens'] / 1e6:.2f} M tokens")


def main() -> int:
    """Run the command line. Without a dependency, print how to install it."""
    try:
        app()
    except ModuleNotFoundError as error:
        install = "in a clone, run pip install torch==2.13.0, then pip install -e . -e training"
        print(f"training needs {error.name}: {install}", file=sys.stderr)
        return 2
    except DgLspError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
