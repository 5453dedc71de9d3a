"""The command line of this room; data_commands.py holds those that make and carry data."""

import dataclasses
import json
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer
from rich.console import Console
from torch.multiprocessing.spawn import start_processes

from dg_lsp.training.config import CONFIGS, TrainConfig
from dg_lsp.training.data_commands import Root, data_app
from dg_lsp.training.documents import NUM_SENTINELS
from dg_lsp.training.gguf_file import Description, write_gguf
from dg_lsp.training.objective import Objective, held_out_batches, validate
from dg_lsp.training.pieces import split, whole
from dg_lsp.training.prepare import read_texts
from dg_lsp.training.progress import shown
from dg_lsp.training.replicas import Replicas, join
from dg_lsp.training.tokenizer import load_tokenizer
from dg_lsp.training.trainer import Trainer
from dg_lsp.training.weights import from_gguf, weights_of, write_weights

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(data_app)


class ConfigName(StrEnum):
    """What can be trained: `tiny` on CPU cores, `mini` on one GPU."""

    TINY = "tiny"
    MINI = "mini"


class Format(StrEnum):
    """How the matrices of a GGUF are stored."""

    F32 = "F32"
    F16 = "F16"
    Q8_0 = "Q8_0"


Config = Annotated[ConfigName, typer.Option("--config")]


@app.command()
def train(
    root: Root,
    config: Config = ConfigName.TINY,
    minutes: Annotated[
        float | None, typer.Option(help="Planned length of the run; the rate falls to zero by then.")
    ] = None,
    part: Annotated[float | None, typer.Option(help="Stop this part after so many minutes; --resume goes on.")] = None,
    resume: Annotated[bool, typer.Option(help="Continue from the checkpoint, without warming up again.")] = False,
    start: Annotated[Path | None, typer.Option(help="Begin with the weights of this GGUF.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; by default what there is.")] = "",
    threads: Annotated[int, typer.Option(help="Threads of each process; 0 leaves torch's choice.")] = 0,
    processes: Annotated[int, typer.Option(help="Replicas on a CPU; better than threads where others use it.")] = 1,
) -> None:
    """Train until the planned time is over; checkpoints every few minutes."""
    planned = CONFIGS[config]
    if minutes:
        planned = dataclasses.replace(planned, minutes=minutes)
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    plan = Plan(root, planned, chosen, part, start, resume=resume, threads=threads)
    if processes == 1:
        return plan.run(Replicas())
    if chosen != "cpu" or planned.rows.rows % processes:
        raise typer.BadParameter(f"several processes are for a CPU, and must divide {planned.rows.rows} rows")
    with TemporaryDirectory() as folder:
        meeting_point = Path(folder) / "meeting-point"
        start_processes(_replica, args=(processes, meeting_point, plan), nprocs=processes, start_method="spawn")
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What every process of a run needs to know."""

    root: Path
    config: TrainConfig
    device: str
    part: float | None
    start: Path | None
    resume: bool
    threads: int

    def run(self, replicas: Replicas) -> None:
        """Trains one replica until the plan is over."""
        if self.threads:
            torch.set_num_threads(self.threads)
        rows = dataclasses.replace(self.config.rows, rows=self.config.rows.rows // replicas.num)
        config = dataclasses.replace(self.config, rows=rows)
        trainer = Trainer(self.root, config, device=self.device, replicas=replicas)
        if self.start:
            trainer.start_from(self.start)
        if self.resume:
            trainer.resume()
        with shown(Console(quiet=not replicas.is_first)) as show:
            trainer.run(show, minutes=self.part)


def _replica(rank: int, num: int, meeting_point: Path, plan: Plan) -> None:
    plan.run(join(rank, num, meeting_point))


@app.command(name="ablate")
def ablate_recipe(
    root: Root,
    steps: Annotated[int, typer.Option(min=2, help="Steps of every variant.")] = 400,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
    only: Annotated[list[str] | None, typer.Option(help="Only variants whose name has this in it; repeatable.")] = None,
) -> None:
    """Train a very small network once per variant of the recipe; a Markdown table of held-out losses."""
    from dg_lsp.training.ablation import ablate, rows, variants

    chosen = tuple(v for v in variants() if not only or any(part in v.name for part in only))
    if not chosen:
        raise typer.BadParameter(f"no variant has {' or '.join(only or ())} in its name")
    torch.set_num_threads(threads)
    for line in rows(ablate(root, steps, chosen)):
        print(line, flush=True)


@app.command()
def export(
    root: Root,
    config: Config = ConfigName.TINY,
    out: Annotated[Path | None, typer.Option(help="The GGUF to write; by default under the work folder.")] = None,
    kind: Annotated[Format, typer.Option("--format")] = Format.Q8_0,
    averaged: Annotated[bool, typer.Option(help="The average of the weights over the last steps.")] = True,
    start: Annotated[Path | None, typer.Option(help="The weights of this GGUF instead of a run's.")] = None,
    plans: Annotated[Path | None, typer.Option(help="The planner's table, as `plans` prints it.")] = None,
    pieces: Annotated[bool, typer.Option(help="Also write bf16 weights, and all in pieces of at most 16 MiB.")] = False,
) -> None:
    """Write a run's weights as a GGUF that describes itself."""
    run = root / "runs" / f"{config}.pt"
    weights = from_gguf(start, CONFIGS[config]) if start else weights_of(run, averaged=averaged)
    rows = weights.config.rows
    description = Description(
        str(config),
        rows.canvas_lengths,
        rows.max_prompt + NUM_SENTINELS,
        weights.tokens_seen,
        plans=json.loads(plans.read_text()) if plans else {},
    )
    path = out or root / "runs" / f"{config}-{kind.lower()}.gguf"
    partial = path.with_name(path.name + ".partial")
    write_gguf(partial, weights.network, load_tokenizer(root / "tokenizer.json"), description, kind)
    partial.replace(path)
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB, {weights.tokens_seen / 1e6:.2f} M tokens seen")
    if pieces:
        for piece in [*split(path), *write_weights(root / "runs" / f"{config}-weights.pt", weights)]:
            print(piece)


@app.command(name="eval")
def evaluate_file(
    root: Root,
    config: Config = ConfigName.TINY,
    file: Annotated[Path | None, typer.Option("--gguf", help="By default what `export` writes.")] = None,
    sites: Annotated[int, typer.Option(help="Lines to fill.")] = 300,
    threads: Annotated[int, typer.Option(help="Threads of llama.cpp.")] = 2,
    batches: Annotated[int, typer.Option(help="Held-out batches whose losses are measured in torch.")] = 40,
) -> None:
    """Losses of a run on the held-out packages, and single lines of them filled by llama.cpp."""
    run = root / "runs" / f"{config}.pt"
    if run.exists() and batches:
        weights = weights_of(run, averaged=True)
        held_out = held_out_batches(root, weights.config, torch.device("cpu"), batches)
        losses = validate(Objective(weights.network, weights.config, compiled=False), held_out)
        print(f"{run.name}, average of the weights, {weights.tokens_seen / 1e6:.2f} M tokens seen, nats: {losses}\n")
    # llama.cpp is of the base installation, but training itself does without it
    from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
    from dg_lsp.backends.llamacpp.model import LlamaModel
    from dg_lsp.models.metadata import describe
    from dg_lsp.settings import RuntimeSettings
    from dg_lsp.training.evaluation import Fillers, evaluate, table
    from dg_lsp.training.questions import held_out_questions

    path = whole(file or root / "runs" / f"{config}-q8_0.gguf")
    runtime = RuntimeSettings(threads=threads, gpu_layers=0)
    model = LlamaModel.load(path, runtime)
    spec = describe(model.metadata, model.vocab_size, path.stem)
    denoiser = LlamaDenoiser(model, spec, runtime)
    questions = held_out_questions(
        read_texts(root / "val.jsonl.xz"), sites, lambda text: model.tokenizer.encode(text).tolist()
    )
    results = evaluate(Fillers(denoiser, denoiser.tokenizer), questions)
    denoiser.close()
    tokens = int(model.metadata.get("dg.tokens_seen", 0))
    print(
        f"{path.name}, {tokens / 1e6:.2f} M tokens seen, {len(questions)} sites, {threads} threads\n\n{table(results)}"
    )
    answers = {way: [dataclasses.asdict(row) for row in rows] for way, rows in results.items()}
    (root / "runs" / f"{path.stem}.eval.json").write_text(json.dumps(answers, indent=1))


@app.command(name="plans")
def plans_of(
    file: Annotated[Path, typer.Argument(help="A GGUF with both heads.")],
    sites: Annotated[Path, typer.Argument(help="Held-out sites, as `sites` writes them.")],
    limit: Annotated[int, typer.Option(help="Sites, drawn at random.")] = 300,
    threads: Annotated[int, typer.Option(help="Threads of llama.cpp.")] = 2,
) -> None:
    """Print what every plan takes by kind of place, as JSON: the planner's table, for `Description.plans`."""
    from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
    from dg_lsp.backends.llamacpp.model import LlamaModel
    from dg_lsp.bench.sites import read_sites, sample
    from dg_lsp.models.metadata import describe
    from dg_lsp.settings import RuntimeSettings
    from dg_lsp.training.plan_table import plan_table

    runtime = RuntimeSettings(threads=threads, gpu_layers=0)
    model = LlamaModel.load(file, runtime)
    denoiser = LlamaDenoiser(model, describe(model.metadata, model.vocab_size, file.stem), runtime)
    print(json.dumps(plan_table(denoiser, denoiser.tokenizer, sample(read_sites(sites), limit, 0)), indent=1))
    denoiser.close()
