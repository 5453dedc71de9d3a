"""Compares contenders on the same test cases: the model by diffusion, the same weights autoregressively, and others.

    python -m dg_benchmarks.compare DATA.jsonl[.gz] [--decoder NAME]... [--llama-server PATH] [--pretrained MODEL]
    python -m dg_benchmarks.compare DATA.jsonl[.gz] --remote URL --json

Every contender answers every case, in a new order at each case, after one uncounted answer. All of them have the same
number of threads and the same limits. The tables have the ratio of each contender to the autoregressive baseline, with
95 % intervals.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs

from dg_benchmarks.comparison import BASELINE, compare_json, compare_tables
from dg_benchmarks.llama_server import LlamaServer
from dg_lsp.bench.dataset import read_cases, sample_cases
from dg_lsp.bench.runner import ANSWER_SECONDS, Contender, EngineContender, RequestOptions, run_cases
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli import loading
from dg_lsp.cli.bench import REMOTE, finish, open_sandbox, remote_notes, run_header
from dg_lsp.cli.options import ModelOptions, configure
from dg_lsp.cli.printing import progress_bar
from dg_lsp.engine.decoder_selection import NO_COSTS, measure_costs
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.errors import DgLspError
from dg_lsp.gguf import map_file_errors
from dg_lsp.models.registry import locate
from dg_lsp.settings import Settings
from dg_lsp.system import file_sha256

DIFFUSION, PRETRAINED = "diffusion", "pretrained"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison; returns the exit code."""
    given = _parser().parse_args(arguments)
    options = RequestOptions(
        given.length, deadline_ms=1e3 * ANSWER_SECONDS, early_stop_ms=given.early_stop, is_warm=given.warm
    )
    try:
        over = ModelOptions(model=given.model, gpu_layers=given.gpu_layers, threads=given.threads).tree
        # the model runs here in any case: the server is one more contender
        settings = configure(over if given.remote is None else {**over, "remote": {"url": given.remote}})
        cases = sample_cases(read_cases(given.data), given.limit, given.seed)
        listed = _listed(given) | options.tree
        sandbox = open_sandbox(cases) if given.execute else None
        with _open_contenders(settings, given, options) as (model, contenders):
            run = run_cases(
                cases,
                contenders,
                run_header("compare", model, settings, {given.data.name: given.data}, listed),
                given.output,
                seed=given.seed,
                sandbox=sandbox,
                progress=progress_bar,
                notes=options.notes,
            )
        return finish(run, compare_tables(run, given.seed), compare_json(run, given.seed) if given.json else None)
    except DgLspError as error:
        print(f"compare: {error}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA.jsonl[.gz]")
    parser.add_argument("--decoder", type=DecoderName, action="append", default=[], help="one more decoder")
    parser.add_argument("--pretrained", metavar="MODEL", help="a causal model, by name or path")
    parser.add_argument("--llama-server", type=Path, metavar="PATH", help="a llama-server to start with the model")
    parser.add_argument("--remote", metavar="URL", help="a server beside the model of this machine")
    parser.add_argument("--model", help="name or path; default: the model of the settings")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--gpu-layers", type=int)
    parser.add_argument("--limit", type=int, help="number of cases, drawn at random; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", choices=("none", "oracle"), default="none", help="what is known of the length")
    parser.add_argument(
        "--early-stop", type=float, default=0.0, metavar="MS", help="accept whole lines after this time"
    )
    parser.add_argument("--warm", action="store_true", help="the cache holds the prompt without its last character")
    parser.add_argument("--execute", action="store_true", help="run the tests of each case in a sandbox")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--output", type=Path, metavar="RUN.jsonl", help="keep every attempt, resume an earlier run")
    return parser


def _listed(given: argparse.Namespace) -> dict[str, Any]:
    """Contenders and seed as plain JSON values for the header of a run."""
    listed: dict[str, Any] = {"decoders": given.decoder, "seed": given.seed, "execute": given.execute}
    if given.pretrained is not None:
        with map_file_errors(path := locate(given.pretrained)):
            listed |= {"pretrained": given.pretrained, "pretrained_sha256": file_sha256(path)}
    if given.llama_server is not None:
        listed["llama_server"] = str(given.llama_server)
    return listed


@contextmanager
def _open_contenders(
    settings: Settings, given: argparse.Namespace, options: RequestOptions
) -> Iterator[tuple[loading.LoadedModel, list[Contender]]]:
    """Opens and starts all contenders, and closes them afterwards. Each engine has its own weights and cache."""
    with ExitStack() as stack:
        contenders: list[Contender] = []

        def add(contender: Contender) -> None:
            stack.callback(contender.close)
            contenders.append(contender)

        runtime = attrs.evolve(settings.model, num_slots=1)
        model, denoiser = loading.open_local(attrs.evolve(settings, model=runtime))
        threads = denoiser.threads
        # the first denoiser measures the threads, and all others use the same number
        settings = attrs.evolve(settings, model=attrs.evolve(runtime, threads=threads))
        decoders = {DIFFUSION: DecoderName.DIFFUSION} if model.spec.has_final_canvas else {}
        decoders |= {BASELINE: DecoderName.AUTOREGRESSIVE} if model.spec.has_causal_head else {}
        decoders |= {decoder.value: decoder for decoder in given.decoder if decoder not in decoders.values()}
        local = [(name, decoder, settings) for name, decoder in decoders.items()]
        if given.pretrained is not None:
            runtime = attrs.evolve(settings.model, name=given.pretrained)
            local.append((PRETRAINED, DecoderName.AUTOREGRESSIVE, attrs.evolve(settings, model=runtime)))
        for name, decoder, own in local:
            if contenders:
                denoiser = loading.open_local(own)[1]
            needs_costs = decoder is DecoderName.AUTO or options.early_stop_ms  # which counts passes by their costs
            costs = measure_costs(denoiser) if needs_costs else NO_COSTS
            engine = LocalEngine(denoiser, denoiser.tokenizer, settings.completion, costs)
            add(EngineContender(name, engine, decoder, options))
        if given.llama_server is not None:
            llama_server = LlamaServer(
                given.llama_server,
                model.path,
                model.spec,
                options,
                threads=threads,
                gpu_layers=settings.model.gpu_layers,
                max_tokens=settings.completion.max_tokens,
            )
            add(llama_server)
        if settings.is_remote:
            notes = remote_notes(settings.remote)
            add(EngineContender(REMOTE, loading.open_engine(settings), DecoderName.AUTO, options, notes))
        yield model, contenders


if __name__ == "__main__":
    sys.exit(main())
