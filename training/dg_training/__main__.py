"""Command line of the training: `python -m dg_training COMMAND`."""

import dataclasses
import importlib.util
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import typer

from dg_lsp.errors import DgLspError

REQUIRED = ("torch", "tokenizers", "gguf", "datasketch")
WHEELS = {
    "tokenizers": "tokenizers",
    "gguf": "gguf",
    "numpy": "numpy",
    "tqdm": "tqdm",
    "pyyaml": "yaml",
    "attrs": "attrs",
    "cattrs": "cattrs",
    "tree-sitter": "tree_sitter",
    "tree-sitter-python": "tree_sitter_python",
    "typer": "typer",
    "shellingham": "shellingham",
    "annotated-doc": "annotated_doc",
    "pydantic": "pydantic",
    "pydantic-core": "pydantic_core",
    "annotated-types": "annotated_types",
    "typing-inspection": "typing_inspection",
}
"""Distributions that `gpu-day run` needs beside torch, and their modules."""

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
gpu_day = typer.Typer(no_args_is_help=True, help="Train on a machine without a network that is yours for some minutes.")
app.add_typer(gpu_day, name="gpu-day")


DEFAULT_ROOT = Path.home() / ".cache" / "dg-lsp" / "training"
Root = Annotated[
    Path, typer.Option(default_factory=lambda: DEFAULT_ROOT, envvar="DG_LSP_TRAINING_ROOT", help="Work folder.")
]
TOKENIZER_CHARS = 40_000_000  # a tokenizer is trained on; more do not change it


@app.command()
def data(
    root: Root,
    new_tokenizer: Annotated[bool, typer.Option(help="Train a tokenizer instead of the bundled model's.")] = False,
    processes: Annotated[int, typer.Option(help="Processes that read and filter; 0: one for each core.")] = 0,
) -> None:
    """Download the pinned packages, filter, deduplicate and split their sources, and write a tokenizer."""
    from dg_lsp.models.registry import BUNDLED
    from dg_training.corpus import prepare
    from dg_training.documents import sample_texts
    from dg_training.store import read_texts
    from dg_training.tokenizer import tokenizer_from_gguf, train_tokenizer

    manifest = prepare(root, num_processes=processes)
    bundled = BUNDLED[0].path
    if new_tokenizer or bundled is None:
        tokenizer = train_tokenizer(sample_texts(read_texts(root / "train.jsonl.xz"), TOKENIZER_CHARS))
    else:
        tokenizer = tokenizer_from_gguf(bundled)
    tokenizer.save(str(root / "tokenizer.json"))
    print(json.dumps({key: value for key, value in manifest.items() if key != "sources"}, indent=1))


@app.command()
def benchmarks(
    files: Annotated[list[Path], typer.Argument(help="HumanEval-Infilling or MBPP, as JSON or JSON lines.")],
) -> None:
    """Write the hashes by which `data` finds benchmark text in the corpus."""
    from dg_training.corpus import BENCHMARK_HASHES, write_benchmarks

    print(f"{BENCHMARK_HASHES}: {write_benchmarks(files)} n-grams")


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
    from dg_lsp.models.registry import BUNDLED
    from dg_training.evaluate import NUM_CASES, NUM_OTHER_CASES, PYTHON, draw_cases, write_cases
    from dg_training.store import read_texts
    from dg_training.tokenizer import tokenizer_from_gguf

    bundled = BUNDLED[0].path
    assert bundled is not None
    tokenizer, num_cases = tokenizer_from_gguf(bundled), NUM_CASES if language == PYTHON else NUM_OTHER_CASES
    files = read_texts(root / "val.jsonl.xz")
    cases = draw_cases(files, lambda text: tokenizer.encode(text).ids, case_set, num_cases, language=language)
    write_cases(out, cases)
    print(f"{out}: {len(cases)} test cases, {out.stat().st_size / 2**20:.1f} MiB")


@app.command()
def train(
    root: Root,
    minutes: Annotated[float | None, typer.Option(help="Planned length; the learning rate falls to zero.")] = None,
    part: Annotated[float | None, typer.Option(help="Stop after this many minutes; --resume continues.")] = None,
    resume: Annotated[bool, typer.Option(help="Continue from the checkpoint.")] = False,
    start: Annotated[Path | None, typer.Option(help="Start with the weights of this GGUF.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; default: cuda where available.")] = "",
) -> None:
    """Train until the planned time is over, with a checkpoint every few minutes."""
    import torch

    from dg_training.train import TINY, Trainer

    planned = TINY
    if minutes:
        planned = dataclasses.replace(planned, minutes=minutes)
    trainer = Trainer(root, planned, device=device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if start:
        trainer.start_from(start)
    if resume:
        trainer.resume()
    trainer.run(lambda report: print(json.dumps(report), flush=True), minutes=part)


@app.command()
def export(
    root: Root,
    out: Annotated[Path | None, typer.Option(help="The GGUF to write; default: in the work folder.")] = None,
    file_type: Annotated[Literal["F32", "F16", "Q8_0"], typer.Option("--format", help="Of the matrices.")] = "Q8_0",
    statistics: Annotated[Path | None, typer.Option(help="Decoder statistics of `eval --statistics`.")] = None,
) -> None:
    """Write the weights of a run as a GGUF file."""
    from dg_training.export import write_model
    from dg_training.tokenizer import load_tokenizer
    from dg_training.train import TINY, checkpoint_network

    network, progress = checkpoint_network(root / "runs" / f"{TINY.name}.pt")
    table, tokens = json.loads(statistics.read_text()) if statistics else {}, progress["tokens"]
    metadata = TINY.metadata(tokens, decoder_statistics=table)
    path = out or root / "runs" / f"{TINY.name}-{file_type.lower()}.gguf"
    write_model(path, network, load_tokenizer(root / "tokenizer.json"), metadata, file_type)
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB, trained on {tokens / 1e6:.2f} M tokens")


@app.command(name="eval")
def evaluate(
    root: Root,
    file: Annotated[Path | None, typer.Option("--gguf", help="Default: the file that `export` writes.")] = None,
    cases: Annotated[Path | None, typer.Option(help="Test cases; default: the set `tune` of `test-cases`.")] = None,
    limit: Annotated[int, typer.Option(help="Number of test cases, drawn at random.")] = 300,
    threads: Annotated[int, typer.Option(help="Threads of llama.cpp.")] = 2,
    batches: Annotated[int, typer.Option(help="Validation batches for the losses; 0: no losses.")] = 40,
    statistics: Annotated[Path | None, typer.Option(help="Write decoder statistics for `export --statistics`.")] = None,
) -> None:
    """Measure a GGUF file on the validation packages: losses, then passes and right first lines of every decoder.

    `dg-lsp bench infill CASES --model FILE` measures exact answers and times.
    """
    from dg_training.evaluate import validation_losses
    from dg_training.train import TINY

    path = file or root / "runs" / f"{TINY.name}-q8_0.gguf"
    if batches:
        print(f"{path.name}, losses in nats: {validation_losses(path, root, TINY, batches)}")
    table = _decoder_statistics(path, root, cases, limit, threads)
    if statistics:
        statistics.write_text(json.dumps(table, indent=1) + "\n")


def _decoder_statistics(path: Path, root: Path, cases: Path | None, limit: int, threads: int) -> dict[str, str]:
    """Measures every decoder of a GGUF file at test cases, and prints the table."""
    from dg_lsp.bench.dataset import read_cases, sample_cases
    from dg_training.evaluate import decoder_statistics, draw_cases, open_denoiser
    from dg_training.store import read_texts

    denoiser, tokenizer = open_denoiser(path, threads)
    listed = read_cases(cases) if cases else draw_cases(read_texts(root / "val.jsonl.xz"), tokenizer.encode, "tune")
    chosen = sample_cases(listed, limit, 0)
    table = decoder_statistics(denoiser, tokenizer, chosen)
    denoiser.close()
    print(f"{len(chosen)} test cases; causal passes, verifying passes, canvas passes, share of right first lines:")
    print("\n".join(f"{name:<25} {numbers.replace(',', ' ' * 4)}" for name, numbers in table.items()))
    return table


@app.command()
def adapt(
    checkpoint: Annotated[Path, typer.Argument(help="A GGUF file, or a folder with safetensors.")],
    root: Root,
    out: Annotated[Path, typer.Option(help="The GGUF to write; a model card is written beside it.")],
    minutes: Annotated[float, typer.Option(help="Planned length; the learning rate falls to zero.")] = 60,
    steps: Annotated[int | None, typer.Option(help="At most so many steps; 0: prune and export only.")] = None,
    tokens: Annotated[int, typer.Option(help="Size of the pruned vocabulary.", min=512, max=65_536)] = 32_768,
    rate: Annotated[float, typer.Option(help="Largest learning rate.")] = 2e-4,
    causal: Annotated[bool, typer.Option("--causal", help="No canvases: the first stage.")] = False,
    name: Annotated[str, typer.Option(help="Name in the file; default: the checkpoint's.")] = "",
    licence: Annotated[str, typer.Option(help="Identifier of the checkpoint's licence, if it states none.")] = "",
    file_type: Annotated[
        Literal["F32", "F16", "Q8_0", "IQ4_NL"],
        typer.Option("--format", help="Of the matrices; the network is trained with weights in IQ4_NL."),
    ] = "Q8_0",
    resume: Annotated[bool, typer.Option(help="Continue from the checkpoint of the run.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda; default: cuda where available.")] = "",
) -> None:
    """Teach a pretrained causal model to fill in the middle and to denoise a canvas, and export it."""
    import torch

    from dg_training.adapt import AdaptOptions
    from dg_training.adapt import adapt as run_adapt

    options = AdaptOptions(
        minutes=minutes,
        max_steps=steps,
        num_tokens=tokens,
        learning_rate=rate,
        is_causal=causal,
        name=name,
        licence=licence,
        file_type=file_type,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
        is_resumed=resume,
    )
    run_adapt(checkpoint, root, out, options, lambda report: print(json.dumps(report), flush=True))
    print(f"{out}: {out.stat().st_size / 2**20:.1f} MiB; {out.with_suffix('.md')} states what may be passed on")


@gpu_day.command()
def pack(
    root: Root,
    to: Annotated[Path, typer.Option(help="The folder of the slices; what is in it is removed.")],
    start: Annotated[Path | None, typer.Option(help="The model file to start with.")] = None,
    size: Annotated[float, typer.Option(help="Largest slice in MiB.")] = 50,
    most: Annotated[float | None, typer.Option(help="Text of the corpus in MiB; the least used packages stay.")] = None,
) -> None:
    """Write the corpus and the model to start with in slices; make the corpus first if it is not there."""
    from dg_training.transfer import MIB, TRAINING, pack_run

    if not (root / TRAINING).exists():
        print(f"no corpus in {root}: it is made now, which takes some minutes", flush=True)
        data(root)
    left_out = pack_run(root, to, int(size * MIB), start, int(most * MIB) if most else None)
    print("\n".join(f"{path}: {path.stat().st_size / MIB:.1f} MiB" for path in sorted(to.iterdir())))
    if left_out:
        print(f"left out: {len(left_out)} packages: {', '.join(left_out)}")
    print("a machine that has torch needs these wheels; `pip download --no-deps --dest FOLDER` for its platform:")
    print(" ".join(f"{name}=={version(name)}" for name in WHEELS))


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
    causal: Annotated[bool, typer.Option("--causal", help="No canvases: the first stage.")] = False,
    file_type: Annotated[
        Literal["F32", "Q8_0", "IQ4_NL"], typer.Option("--format", help="Of the exported matrices.")
    ] = "IQ4_NL",
    name: Annotated[str, typer.Option(help="Name in the file; default: the checkpoint's.")] = "",
    device: Annotated[str, typer.Option(help="cpu or cuda; default: cuda where available.")] = "",
) -> None:
    """Unpack and train; the state of the run stays in the work folder, exports go to `out`."""
    import torch

    from dg_training import gpu_day
    from dg_training.adapt import AdaptOptions
    from dg_training.transfer import MIB

    options = AdaptOptions(
        minutes=minutes,
        learning_rate=rate,
        is_causal=causal,
        name=name,
        file_type=file_type,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
        checkpoint_minutes=every,
    )
    parcel = gpu_day.Parcel(out, int(size * MIB), int(most * MIB))
    gpu_day.run(root, packed or [], parcel, options, part_minutes=part, start=start, is_continued=go_on)


@gpu_day.command()
def collect(
    folders: Annotated[list[Path], typer.Argument(help="Folders that came back.")],
    out: Annotated[Path, typer.Option(help="The GGUF to write.")],
    entry: Annotated[Path, typer.Option(help="The log's entry to write, as Markdown.")] = Path("entry.md"),
    title: Annotated[str, typer.Option(help="Title of the entry.")] = "A training run on a GPU",
) -> None:
    """Join the newest whole export, and write the log's entry."""
    from dg_training import gpu_day

    facts, lines = gpu_day.collect(folders, out)
    print(f"{out}: {out.stat().st_size / 2**20:.1f} MiB, step {facts['step']}, {facts['tokens'] / 1e6:.2f} M tokens")
    entry.write_text(gpu_day.log_entry(title, facts, lines))


def main() -> int:
    """Run the command line. Without its dependencies, print how to install them."""
    is_away = sys.argv[1:3] == ["gpu-day", "run"]
    needed = {"torch": "torch", **WHEELS} if is_away else {name: name for name in REQUIRED}
    missing = ", ".join(name for name, module in needed.items() if importlib.util.find_spec(module) is None)
    if missing:
        install = "in a clone, run pip install torch==2.13.0, then pip install -e . -e training"
        away, home = f"`gpu-day run` needs the wheels {missing}", f"training needs {missing}: {install}"
        print(away if is_away else home, file=sys.stderr)
        return 2
    try:
        app()
    except DgLspError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
