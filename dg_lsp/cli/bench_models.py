"""Models and contenders of a benchmark."""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from dg_lsp.bench.baselines import LlamaDiffusionCli, LlamaServer
from dg_lsp.bench.compare import BASELINE
from dg_lsp.bench.contenders import Contender, EngineContender, RequestOptions
from dg_lsp.bench.runs import file_sha256
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli import loading
from dg_lsp.engine.decoder_selection import measure_costs
from dg_lsp.engine.engine import Engine, LocalEngine
from dg_lsp.models.registry import locate
from dg_lsp.settings import RemoteSettings, Settings

if TYPE_CHECKING:
    from dg_lsp.backends.llamacpp.denoiser import ContextDenoiser
    from dg_lsp.backends.transformers.denoiser import TransformersDenoiser

DIFFUSION, PRETRAINED, REMOTE = "diffusion", "pretrained", "remote"
_REMOTE_OPTIONS = ("url", "api", "model", "fim", "max_prompt_tokens")


@dataclass(frozen=True, slots=True, eq=False)
class BenchModel:
    """The engine of a benchmark and the origin of its model."""

    engine: Engine
    path: Path | None
    """None for a remote server, like the threads."""
    threads: int | None

    @property
    def sha256(self) -> str | None:
        """Digest of the model file.

        Raises:
            InputFileError: the file is unreadable.
        """
        return None if self.path is None else file_sha256(self.path)


def open_model(settings: Settings) -> BenchModel:
    """Loads the model of the settings and measures its costs, as a server does.

    Raises:
        ModelError: the model is missing, broken, unsupported, or too large.
        BackendError: the runtime cannot be loaded.
        SettingsError: the settings of a remote server are incomplete.
    """
    if settings.is_remote:
        return BenchModel(loading.open_engine(settings), None, None)
    model = loading.load_model(settings)
    denoiser = loading.open_denoiser(model, settings)
    return BenchModel(
        LocalEngine(denoiser, denoiser.tokenizer, settings.completion, measure_costs(denoiser)),
        model.path,
        denoiser.threads,
    )


@dataclass(frozen=True, slots=True)
class ContenderChoice:
    """The contenders of `bench compare` besides the model by diffusion and autoregressively."""

    decoders: tuple[DecoderName, ...] = ()
    pretrained: str | None = None
    llama_server: Path | None = None
    llama_diffusion_cli: Path | None = None
    diffusion_steps: int = 0
    remote: RemoteSettings | None = None

    def json(self) -> dict[str, Any]:
        """Plain JSON values for the header of a run."""
        options: dict[str, Any] = {"decoders": [decoder.value for decoder in self.decoders]}
        if self.pretrained is not None:
            options |= {"pretrained": self.pretrained, "pretrained_sha256": file_sha256(locate(self.pretrained))}
        if self.llama_server is not None:
            options |= {"llama_server": str(self.llama_server)}
        if self.llama_diffusion_cli is not None:
            options |= {"llama_diffusion_cli": str(self.llama_diffusion_cli), "diffusion_steps": self.diffusion_steps}
        return options if self.remote is None else {**options, **remote_options(self.remote)}


@contextmanager
def open_contenders(
    settings: Settings, choice: ContenderChoice, options: RequestOptions
) -> Iterator[tuple[BenchModel, list[Contender]]]:
    """Opens and starts all contenders, and closes them afterwards. Each engine has its own weights and cache.

    Raises:
        ModelError, BackendError, UsageError: a contender cannot be started.
    """
    with ExitStack() as stack:
        contenders: list[Contender] = []

        def add(contender: Contender) -> None:
            stack.callback(contender.close)
            contenders.append(contender)

        runtime = attrs.evolve(settings.model, num_slots=1)
        model, denoiser = _open(attrs.evolve(settings, model=runtime))
        threads, opened = denoiser.threads, [denoiser]
        # the first denoiser measures the threads, and all others use the same number
        settings = attrs.evolve(settings, model=attrs.evolve(runtime, threads=threads))
        decoders = {DIFFUSION: DecoderName.DIFFUSION} if model.spec.sampling else {}
        decoders |= {BASELINE: DecoderName.AUTOREGRESSIVE} if model.spec.has_causal_head else {}
        decoders |= {one.value: one for one in choice.decoders if one not in decoders.values()}
        for name, decoder in decoders.items():
            own = opened.pop() if opened else _open(settings)[1]
            costs = measure_costs(own) if decoder is DecoderName.AUTO else None
            add(EngineContender(name, LocalEngine(own, own.tokenizer, settings.completion, costs), decoder, options))
        engine = next(one.engine for one in contenders if isinstance(one, EngineContender))
        if choice.pretrained is not None:
            _, other = _open(attrs.evolve(settings, model=attrs.evolve(settings.model, name=choice.pretrained)))
            pretrained = LocalEngine(other, other.tokenizer, settings.completion)
            add(EngineContender(PRETRAINED, pretrained, DecoderName.AUTOREGRESSIVE, options))
        if choice.llama_server is not None:
            more = {"gpu_layers": settings.model.gpu_layers, "max_tokens": settings.completion.max_tokens}
            add(LlamaServer(choice.llama_server, model.path, model.spec, options, threads=threads, **more))
        if choice.llama_diffusion_cli is not None:
            where = (choice.llama_diffusion_cli, model.path, model.spec, denoiser.tokenizer, options)
            add(LlamaDiffusionCli(*where, threads=threads, num_steps=choice.diffusion_steps))
        if choice.remote is not None:
            remote = loading.open_engine(attrs.evolve(settings, remote=choice.remote))
            add(EngineContender(REMOTE, remote, DecoderName.AUTO, options, remote_notes(choice.remote)))
        yield BenchModel(engine, model.path, threads), contenders


def remote_options(settings: RemoteSettings) -> dict[str, Any]:
    """Plain JSON values of a remote server for the header of a run, without secrets."""
    tree = attrs.asdict(settings)
    extra = hashlib.sha256(settings.extra.encode()).hexdigest()[:16] if settings.extra else None
    return {REMOTE: {**{name: tree[name] for name in _REMOTE_OPTIONS}, "extra_sha256": extra}}


def remote_notes(settings: RemoteSettings, model_time: str = "is unknown") -> tuple[str, ...]:
    """Sentences for a reader of the numbers of a remote server."""
    return (
        f"{REMOTE} is {settings.url} by {settings.api}: its times are those of a client and include the network.",
        f"Steps and tokens are known as far as the server reports them; its model time {model_time}.",
    )


def _open(settings: Settings) -> "tuple[loading.LoadedModel, ContextDenoiser | TransformersDenoiser]":
    model = loading.load_model(settings)
    return model, loading.open_denoiser(model, settings)
