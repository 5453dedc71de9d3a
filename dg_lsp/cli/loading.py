"""Models and engines for the settings of a command."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dg_lsp import system
from dg_lsp.backends import llamacpp, transformers
from dg_lsp.backends.llamacpp import LlamaModel, denoiser_for
from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.threads import physical_cores
from dg_lsp.canvas.chat import with_thoughts
from dg_lsp.canvas.spec import Checkpoint, ModelSpec, PromptFormat, with_sampler
from dg_lsp.cli.options import FileOptions, configure
from dg_lsp.cli.printing import note, warn
from dg_lsp.cli.source import SourceFile
from dg_lsp.cli.trial import tested
from dg_lsp.context.exclusion import Exclusion
from dg_lsp.engine.decoder_selection import measure_costs
from dg_lsp.engine.engine import Engine, LocalEngine
from dg_lsp.engine.remote_engine import RemoteEngine
from dg_lsp.errors import DgLspError, InputFileError, OptionError, SettingsError, UsageError, escaped
from dg_lsp.models import registry, selection
from dg_lsp.models.metadata import describe, read_folder
from dg_lsp.models.registry import AUTO, BASE, known_names, locate
from dg_lsp.settings import NO_OPTIONS, SAMPLER_NAMES, ModelSettings, Settings, with_setting

if TYPE_CHECKING:
    from dg_lsp.backends.transformers.denoiser import TransformersDenoiser


def configure_for(source: SourceFile, overrides: Mapping[str, Any], options: FileOptions, *, as_json: bool) -> Settings:
    """The settings of a command on a file.

    Raises UsageError if two forms of the output are requested, InputFileError if the file is excluded or read-only.
    """
    if as_json and options.format == "patch":
        raise UsageError("--json and --format patch exclude each other: leave one of them out")
    if options.write:
        source.check_writable()
    settings = configure(overrides)
    if not options.even_secret:
        check_allowed(source, settings, "; use --even-secret to send it anyway")
    return settings


def check_allowed(source: SourceFile, settings: Settings, advice: str = "") -> None:
    """Raises InputFileError if the settings exclude a file that would be sent to the model."""
    if (reason := exclusion(settings).exclusion_reason(source.snapshot())) is not None:
        raise InputFileError(f"{source.path} is not sent to the model: {reason}{advice}")


def exclusion(settings: Settings) -> Exclusion:
    """What the settings exclude, with the working directory as the workspace."""
    return Exclusion(settings.privacy, [Path.cwd().as_uri()])


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights in memory or the directory of a complete checkpoint, with the model's specification."""

    path: Path
    weights: LlamaModel | Checkpoint
    spec: ModelSpec
    threads: int | None = None  # CPU threads of a step, once they are measured

    def facts(self) -> dict[str, Any]:
        """The model as `doctor` and `models show` print it, in JSON values."""
        spec, sampling = self.spec, self.spec.sampling
        return {
            "name": spec.name,
            "path": str(self.path),
            "size_bytes": self.weights.size_bytes,
            "description": self.weights.description,
            "placement": None if isinstance(self.weights, Checkpoint) else self.weights.where,
            "languages": list(spec.languages) or ["all"],
            "noise": spec.noise,
            "prompt_format": spec.prompt_format.value,
            "fim_family": (spec.fim.family or "unknown") if spec.fim else None,
            "fim_order": spec.fim.order.value if spec.fim else None,
            "fim_evidence": (spec.fim.evidence or "none") if spec.fim else None,
            "chat_template": spec.template or ("of the file" if spec.chat_template else None),
            "canvas_lengths": list(spec.canvas_lengths),
            "max_prompt_tokens": spec.max_prompt_tokens,
            "sampler": {
                name: getattr(sampling, name) for name in SAMPLER_NAMES if sampling and hasattr(sampling, name)
            },
        }

    @property
    def warning(self) -> str:
        """What the prompt format lacks, with the next step; empty if it is known to be right."""
        spec, fim = self.spec, self.spec.fim
        if spec.prompt_format is PromptFormat.PREFIX:
            problem = "has no fill-in-the-middle tokens of a known family, so it does not see the text after the cursor"
            return f"{spec.name} {problem}: dg-lsp models list has models that do"
        if spec.prompt_format is not PromptFormat.FIM or fim is None or fim.evidence in ("metadata", "file name"):
            return ""
        problem = f"has fill-in-the-middle tokens of {fim.family or 'no known family'} without its name"
        advice = "if its fills ignore the text after the cursor or repeat it, choose another one: dg-lsp models list"
        return f"{spec.name} {problem}, so their order is a guess: {advice}"


def this_machine(*, with_gpu: bool = True) -> selection.Machine:
    """What this machine has for models, with the GPUs that llama.cpp can use; no speed is measured."""
    devices: tuple[llamacpp.Device, ...] = ()
    with suppress(DgLspError):  # without llama.cpp the facts are still useful; `doctor` reports the problem
        devices = llamacpp.devices() if with_gpu else ()
    gpus = [device for device in devices if device.kind in ("gpu", "igpu")]
    return selection.Machine(
        cores=physical_cores(),
        memory_bandwidth=0.0,
        gpus=tuple(selection.ComputeDevice(gpu.name, gpu.kind, gpu.memory_free) for gpu in gpus),
        free_memory=system.system_free(),
        free_disk=system.free_disk(system.data_folder()),
    )


def selected_model(settings: Settings) -> selection.Selection | None:
    """The model that `auto` or `auto-diffusion` stands for here; None for other names.

    For `auto`, the machine is examined only where a model was pulled.
    """
    name = settings.model.name
    if name == registry.AUTO_DIFFUSION:
        bundled = selection.Selection(registry.MINI, "")
    elif name != registry.AUTO:
        return None
    else:
        bundled = selection.default_model(settings.model)
        if os.environ.get(selection.AUTO_VARIABLE) or not any(map(registry.is_tested, registry.PRESETS)):
            return bundled
    machine = this_machine(with_gpu=bool(settings.model.gpu_layers) and settings.model.device != "cpu")
    machine = replace(machine, memory_bandwidth=system.memory_bandwidth(machine.cores))
    return selection.select(machine, registry.is_tested, name, bundled)


def with_model_chosen(settings: Settings) -> Settings:
    """Replaces `auto` and `auto-diffusion` by a model for this machine; prints the reason of an unusual choice."""
    chosen = selected_model(settings)
    if chosen is None:
        return settings
    if chosen.name not in (os.environ.get(selection.AUTO_VARIABLE), BASE):
        note(f"{settings.model.name} selects {chosen.name}: {chosen.reason}")
    return with_setting(settings, "model.name", chosen.name)


def load_model(settings: Settings) -> LoadedModel:
    """Locates and loads the model of the settings; it is tested in a child first. Raises as `open_engine` does."""
    settings, path = _located(settings)
    with tested(path, settings.model) as source:
        return load_file(path, settings, source=source)


def open_local(settings: Settings) -> "tuple[LoadedModel, LlamaDenoiser | TransformersDenoiser]":
    """Loads the model of the settings and opens its denoiser. Raises as `open_engine` does."""
    settings, path = _located(settings)
    with ExitStack() as on_failure:
        with tested(path, settings.model) as source:
            model = load_file(path, settings, source=source)
            on_failure.callback(model.weights.close)
            denoiser = open_denoiser(model, settings.model)
            on_failure.callback(denoiser.close)
        on_failure.pop_all()
    return replace(model, threads=denoiser.threads), denoiser


def _located(settings: Settings) -> tuple[Settings, Path]:
    """The settings with the model that they stand for here and its prompt attention, and its file or folder."""
    settings = with_model_chosen(settings)
    path = locate(settings.model.name)
    attention = settings.model.sampler_of(_name_of(path, settings)).prompt_attention
    return with_setting(settings, "model.prompt_attention", attention) if attention else settings, path


def load_file(
    path: Path, settings: Settings, *, check_tensors: bool = False, source: Path | None = None
) -> LoadedModel:
    """Loads a file or folder, whose name the settings have; with a check of all weights, if wanted.

    `source` is another path of the file, by which llama.cpp opens it.
    """
    name = _name_of(path, settings)
    if path.is_dir():
        checkpoint, spec = read_folder(path, name if name == settings.model.name else "")
        return LoadedModel(path, checkpoint, _with_user_sampler(spec, settings))

    weights = LlamaModel(path, settings.model, check_tensors=check_tensors, source=source)
    try:
        specials = None if "dg.version" in weights.metadata else weights.tokenizer.specials()
        spec = describe(weights.metadata, weights.vocab_size, name, specials)
        spec = _with_user_sampler(with_thoughts(spec, weights.tokenizer), settings)
    except BaseException:
        weights.close()
        raise
    return LoadedModel(path, weights, spec)


def _name_of(path: Path, settings: Settings) -> str:
    """The name of a model; for one that is given by its path, that of the file."""
    return settings.model.name if settings.model.name in known_names() else escaped(path.stem)


def _with_user_sampler(spec: ModelSpec, settings: Settings) -> ModelSpec:
    """The spec with the options of the user's file and `--prompt-attention`; raises SettingsError if one is wrong."""
    try:
        return with_sampler(spec, settings.model.sampler_of(spec.name))
    except OptionError as error:
        of_file = dict(settings.model.sampler).get(spec.name, NO_OPTIONS)
        key = f"model.sampler.{spec.name}: {error.option}" if error.option in of_file.values else "--prompt-attention"
        raise SettingsError(f"{key} {error.problem}") from error


def open_denoiser(model: LoadedModel, settings: ModelSettings) -> "LlamaDenoiser | TransformersDenoiser":
    """Opens the model's denoiser. Raises as `open_engine` does."""
    if isinstance(model.weights, Checkpoint):
        return transformers.open_checkpoint(model.weights, model.spec, settings, note)
    return denoiser_for(model.weights, model.spec, settings)


def open_measured(settings: Settings) -> tuple[LoadedModel, LocalEngine]:
    """Loads the model of the settings and measures its costs. Raises as `open_engine` does.

    Where `auto` finds dg-base too slow, dg-mini is loaded instead.
    """
    chosen = with_model_chosen(settings)
    model, denoiser = open_local(chosen)
    start = time.perf_counter()
    processor_start = time.process_time()
    try:
        engine = LocalEngine(denoiser, denoiser.tokenizer, settings.completion, measure_costs(denoiser))
    except BaseException:  # a server goes on: the memory of the model has to be free again
        denoiser.close()
        raise
    if (settings.model.name, chosen.model.name) == (AUTO, BASE):
        seconds = time.perf_counter() - start
        own_seconds = (time.process_time() - processor_start) / (denoiser.threads or 1)
        is_on_gpu = isinstance(model.weights, LlamaModel) and model.weights.on_gpu
        idle_share = 1.0 if is_on_gpu else min(1.0, own_seconds / seconds)  # the rest went to other programs
        verdict = selection.measured_model(settings.model, idle_share * engine.costs.line_ms)
        if verdict.name != BASE:
            engine.close()
            note(f"{AUTO} selects {verdict.name}: {verdict.reason}")
            return open_measured(with_setting(settings, "model.name", verdict.name))
    return model, engine


def open_engine(settings: Settings) -> Engine:
    """Opens an engine for the settings.

    Raises:
        ModelError: the model is missing, broken, unsupported or too large.
        BackendError: the runtime cannot be loaded.
        SettingsError: the settings of the remote server are incomplete.
    """
    if settings.is_remote:
        if settings.privacy.is_incomplete:
            problem = "a settings file or a key of privacy is ignored, so the server could receive excluded files"
            advice = "correct what the editor or dg-lsp doctor reports"
            raise SettingsError(f"remote.url is not used, because {problem}: {advice}")
        from dg_lsp.backends.remote.client import RemoteModel  # most commands have no use for its HTTP client

        model = RemoteModel(settings.remote)
        model.learn_languages()
        return RemoteEngine(model, settings.completion)
    _, engine = open_measured(settings)
    return engine


@contextmanager
def timed_engine(settings: Settings, language_id: str | None = None) -> Iterator[tuple[Engine, float]]:
    """An engine and the milliseconds that loading took; closes the engine at the end.

    Prints a warning on standard error if the model does not know the language.
    """
    start = time.perf_counter()
    engine = open_engine(settings)
    with closing(engine):
        if language_id is not None and (problem := engine.spec.language_problem(language_id)):
            warn(problem)
        yield engine, 1e3 * (time.perf_counter() - start)
