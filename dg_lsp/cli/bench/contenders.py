"""What `dg-lsp bench compare` lets compete: models opened, peers started."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from dg_lsp.bench.compare import BASELINE
from dg_lsp.bench.runs import file_sha256
from dg_lsp.bench.ways import TERMS, EngineWay, Terms, Way
from dg_lsp.bench.ways_cli import CommandWay
from dg_lsp.bench.ways_server import ServerWay
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.cli import loading
from dg_lsp.cli.bench.opening import REMOTE, remote_notes, remote_options
from dg_lsp.engine.decoder_selection import measure_costs
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import DecoderName
from dg_lsp.models.registry import locate
from dg_lsp.settings import RemoteSettings, Settings

if TYPE_CHECKING:
    from dg_lsp.backends.llamacpp.loader import OpenedDenoiser
    from dg_lsp.backends.transformers.denoiser import TransformersDenoiser

DIFFUSION, PRETRAINED = "diffusion", "pretrained"


@dataclass(frozen=True, slots=True)
class Contenders:
    """What was asked for beside the model's own two ways."""

    plans: tuple[DecoderName, ...] = ()
    pretrained: str | None = None
    llama_server: Path | None = None
    llama_diffusion_cli: Path | None = None
    diffusion_steps: int = 0
    remote: RemoteSettings | None = None
    terms: Terms = TERMS

    def options(self) -> dict[str, Any]:
        """What a run's header must say of them, as plain JSON values."""
        options: dict[str, Any] = {"plans": [plan.value for plan in self.plans]}
        options |= asdict(self.terms)
        if self.pretrained is not None:
            options |= {"pretrained": self.pretrained, "pretrained_sha256": file_sha256(locate(self.pretrained))}
        if self.llama_server is not None:
            options |= {"llama_server": str(self.llama_server)}
        if self.llama_diffusion_cli is not None:
            options |= {"llama_diffusion_cli": str(self.llama_diffusion_cli), "diffusion_steps": self.diffusion_steps}
        if self.remote is not None:
            options |= remote_options(self.remote)
        return options


class Ring:
    """Everybody, ready. Each of our ways has weights and a cache of its own, and all have the same threads."""

    def __init__(self, settings: Settings) -> None:
        """Nobody yet."""
        self._settings = settings
        self._stack = ExitStack()
        self.ways: list[Way] = []
        self.path = Path()
        self.threads = settings.runtime.threads
        """CPU threads of a step; measured by the first who needs them."""

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.own.engine.spec.name

    @property
    def own(self) -> EngineWay:
        """The model's first way."""
        return next(way for way in self.ways if isinstance(way, EngineWay))

    def fill(self, contenders: Contenders) -> None:
        """Opens and starts everybody.

        Raises:
            ModelError, BackendError, UsageError: somebody cannot take part.
        """
        model, denoiser = self._open(self._settings)
        self.path, self.threads = model.path, denoiser.threads
        ready = [denoiser]
        for name, plan in _own(model.spec, contenders.plans):
            self._add_engine(name, plan, ready.pop() if ready else self._open(self._settings)[1], contenders)
        if contenders.pretrained is not None:
            _, other = self._open(attrs.evolve(self._settings, model=contenders.pretrained))
            self._add_engine(PRETRAINED, DecoderName.CAUSAL, other, contenders)
        if contenders.llama_server is not None:
            server = ServerWay.start(
                contenders.llama_server,
                self.path,
                model.spec,
                contenders.terms,
                threads=self.threads,
                gpu_layers=self._settings.runtime.gpu_layers,
                max_tokens=self._settings.fill.max_tokens,
            )
            self._add(server)
        if contenders.llama_diffusion_cli is not None:
            command = CommandWay(
                contenders.llama_diffusion_cli,
                self.path,
                model.spec,
                denoiser.tokenizer,
                contenders.terms,
                threads=self.threads,
                num_steps=contenders.diffusion_steps,
            )
            self._add(command)
        if contenders.remote is not None:
            engine = loading.open_engine(attrs.evolve(self._settings, backend=REMOTE, remote=contenders.remote))
            self._add(EngineWay(REMOTE, engine, DecoderName.AUTO, contenders.terms, remote_notes(contenders.remote)))

    def close(self) -> None:
        """Ends everybody; harmless when repeated."""
        self._stack.close()

    def _open(self, settings: Settings) -> "tuple[loading.LoadedModel, OpenedDenoiser | TransformersDenoiser]":
        runtime = attrs.evolve(settings.runtime, num_slots=1, threads=self.threads)
        settings = attrs.evolve(settings, runtime=runtime)
        model = loading.load_model(settings)
        return model, loading.open_denoiser(model, settings)

    def _add_engine(
        self, name: str, plan: DecoderName, denoiser: "OpenedDenoiser | TransformersDenoiser", contenders: Contenders
    ) -> None:
        # only who may choose has to know what passes cost
        costs = measure_costs(denoiser) if plan is DecoderName.AUTO else None
        engine = Engine(denoiser, denoiser.tokenizer, self._settings.fill, costs)
        self._add(EngineWay(name, engine, plan, contenders.terms))

    def _add(self, way: Way) -> None:
        self._stack.callback(way.close)
        self.ways.append(way)


@contextmanager
def ring(contenders: Contenders, settings: Settings) -> Iterator[Ring]:
    """Everybody ready; ended afterwards, whatever happens.

    Raises:
        ModelError, BackendError, UsageError: somebody cannot take part.
    """
    opened = Ring(settings)
    try:
        opened.fill(contenders)
        yield opened
    finally:
        opened.close()


def _own(spec: ModelSpec, plans: tuple[DecoderName, ...]) -> Iterator[tuple[str, DecoderName]]:
    """Names and plans of the ways that the model itself goes."""
    own = {DIFFUSION: DecoderName.CANVAS} if spec.sampling else {}
    own |= {BASELINE: DecoderName.CAUSAL} if spec.has_causal_head else {}
    yield from own.items()
    yield from ((plan.value, plan) for plan in dict.fromkeys(plans) if plan not in own.values())
