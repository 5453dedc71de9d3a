"""Command line of the training: `python -m dg_lsp.training COMMAND`."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from dg_lsp.errors import DgLspError

REQUIRED = ("torch", "tokenizers", "gguf", "datasketch")
BUNDLED_MODEL = Path(__file__).parents[1] / "models" / "dg-mini.gguf"

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


DEFAULT_ROOT = Path.home() / ".cache" / "dg-lsp" / "training"
Root = Annotated[
    Path, typer.Option(default_factory=lambda: DEFAULT_ROOT, envvar="DG_LSP_TRAINING_ROOT", help="Work folder.")
]
Config = Annotated[Literal["tiny", "mini"], typer.Option(help="`tiny` for CPU cores, `mini` for one GPU.")]


@app.command()
def data(
    root: Root,
    offline: Annotated[bool, typer.Option(help="Use the wheels that are already downloaded.")] = False,
    new_tokenizer: Annotated[bool, typer.Option(help="Train a tokenizer instead of the bundled model's.")] = False,
    processes: Annotated[int, typer.Option(help="Processes that read and filter; 0: one for each core.")] = 0,
) -> None:
    """Download the pinned packages, filter, deduplicate and split their sources, tokenize them."""
    from dg_lsp.training.corpus import prepare

    source = None if new_tokenizer else BUNDLED_MODEL
    manifest = prepare(root, offline=offline, tokenizer_source=source, num_processes=processes)
    print(json.dumps({key: value for key, value in manifest.items() if key != "sources"}, indent=1))


@app.command()
def benchmarks(
    files: Annotated[list[Path], typer.Argument(help="HumanEval-Infilling or MBPP, as JSON or JSON lines.")],
) -> None:
    """Write the hashes by which `data` finds benchmark text in the corpus."""
    from dg_lsp.training.corpus import BENCHMARK_HASHES, write_benchmarks

    print(f"{BENCHMARK_HASHES}: {write_benchmarks(files)} n-grams")


@app.command()
def tokenize(root: Root) -> None:
    """Tokenize a corpus that was copied from another machine: tokenizer.json, train.jsonl.xz and val.jsonl.xz."""
    from dg_lsp.training.corpus import tokenize_splits

    print(json.dumps({"tokens": tokenize_splits(root)}))


@app.command(name="test-cases")
def write_test_cases(
    root: Root,
    out: Annotated[Path, typer.Option(help="The file to write: JSON lines, gzip.")],
    case_set: Annotated[
        Literal["report", "tune"], typer.Option("--set", help="`tune`: other lines, for thresholds.")
    ] = "report",
) -> None:
    """Write 1,000 test cases of the validation packages in the format of HumanEval-Infilling."""
    from dg_lsp.training.corpus import read_texts
    from dg_lsp.training.evaluate import draw_cases, write_cases
    from dg_lsp.training.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(root / "tokenizer.json")
    cases = draw_cases(read_texts(root / "val.jsonl.xz"), lambda text: tokenizer.encode(text).ids, case_set)
    write_cases(out, cases)
    print(f"{out}: {len(cases)} test cases, {out.stat().st_size / 2**20:.1f} MiB")


@app.command()
def train(
    root: Root,
    config: Config = "tiny",
    minutes: Annotated[float | None, typer.Option(help="Planned length; the learning rate falls to zero.")] = None,
    part: Annotated[float | None, typer.Option(help="Stop after this many minutes; --resume continues.")] = None,
    resume: Annotated[bool, typer.Option(help="Continue from the checkpoint.")] = False,
    start: Annotated[Path | None, typer.Option(help="Start with the weights of this GGUF.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; default: cuda where available.")] = "",
) -> None:
    """Train until the planned time is over, with a checkpoint every few minutes.

    On a busy CPU: `torchrun --nproc-per-node 2 -m dg_lsp.training train --device cpu`.
    """
    import torch
    from torch import distributed

    from dg_lsp.training.train import CONFIGS, Trainer

    planned = CONFIGS[config]
    if minutes:
        planned = dataclasses.replace(planned, minutes=minutes)
    if distributed.is_torchelastic_launched():
        distributed.init_process_group("gloo")
    trainer = Trainer(root, planned, device=device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if start:
        trainer.start_from(start)
    if resume:
        trainer.resume()
    trainer.run(lambda report: print(json.dumps(report), flush=True), minutes=part)


@app.command()
def export(
    root: Root,
    config: Config = "tiny",
    out: Annotated[Path | None, typer.Option(help="The GGUF to write; default: in the work folder.")] = None,
    file_type: Annotated[Literal["F32", "F16", "Q8_0"], typer.Option("--format", help="Of the matrices.")] = "Q8_0",
    start: Annotated[Path | None, typer.Option(help="Use the weights of this GGUF, not the checkpoint's.")] = None,
    statistics: Annotated[Path | None, typer.Option(help="Decoder statistics of `eval --statistics`.")] = None,
) -> None:
    """Write the weights of a run as a GGUF file."""
    from dg_lsp.training.export import ExportMetadata, read_model, write_model
    from dg_lsp.training.rows import NUM_SENTINELS
    from dg_lsp.training.tokenizer import load_tokenizer
    from dg_lsp.training.train import CONFIGS, checkpoint_network

    checkpoint, planned = root / "runs" / f"{config}.pt", CONFIGS[config]
    network, tokens = read_model(start, planned.network) if start else checkpoint_network(checkpoint)
    table = json.loads(statistics.read_text()) if statistics else {}
    prompt_tokens = planned.rows.max_prompt + NUM_SENTINELS
    metadata = ExportMetadata(config, planned.rows.canvas_lengths, prompt_tokens, tokens, table)
    path = out or root / "runs" / f"{config}-{file_type.lower()}.gguf"
    partial = path.with_name(path.name + ".partial")
    write_model(partial, network, load_tokenizer(root / "tokenizer.json"), metadata, file_type)
    partial.replace(path)
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB, trained on {tokens / 1e6:.2f} M tokens")


@app.command(name="eval")
def evaluate(
    root: Root,
    config: Config = "tiny",
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
    from dg_lsp.bench.dataset import read_cases, sample_cases
    from dg_lsp.training.corpus import read_texts
    from dg_lsp.training.evaluate import decoder_statistics, draw_cases, open_denoiser, validation_losses
    from dg_lsp.training.train import CONFIGS

    path = file or root / "runs" / f"{config}-q8_0.gguf"
    if batches:
        print(f"{path.name}, losses in nats: {validation_losses(path, root, CONFIGS[config], batches)}")
    denoiser, tokenizer = open_denoiser(path, threads)
    found = read_cases(cases) if cases else draw_cases(read_texts(root / "val.jsonl.xz"), tokenizer.encode, "tune")
    chosen = sample_cases(found, limit, 0)
    table = decoder_statistics(denoiser, tokenizer, chosen)
    denoiser.close()
    print(f"{len(chosen)} test cases; causal passes, verifying passes, canvas passes, share of right first lines:")
    print("\n".join(f"{name:<25} {numbers.replace(',', ' ' * 4)}" for name, numbers in table.items()))
    if statistics:
        statistics.write_text(json.dumps(table, indent=1) + "\n")


def main() -> int:
    """Run the command line. Without the optional dependencies, print how to install them."""
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        install = "pip install 'dg-lsp[training]' (measured with torch==2.13.0)"
        print(f"training needs {', '.join(missing)}: {install}", file=sys.stderr)
        return 2
    try:
        app()
    except DgLspError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
