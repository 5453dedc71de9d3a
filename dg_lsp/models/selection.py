"""Which model is expected to help most on a machine: one ranking for `auto`, `auto-diffusion` and recommendations.

The expected useful edits of a request are

    quality * 0.5 ** (ms / 700)

- quality: the share of single lines of HumanEval whose program passes its tests, published, measured or estimated:
  `quality` and `quality_source` in catalog.toml.
- ms: expected milliseconds to a line while the user types, always an estimate. `line_ms` computes it from the number of
  passes, the bytes that each reads, and the bandwidth of the memory that holds them.
- 700 ms: after this time half of the requests are out of date, because the user has typed on: the geometric mean of the
  pauses before a word and before a line in `bench/replay.py`. A line that takes 3,000 ms or more counts as none:
  at the default deadline of 1,000 ms not even a third of it is there.

A model that follows instructions also makes rewrites, so it may be worse by 3 useful edits in 100 requests.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dg_lsp.canvas.spec import PromptFormat
from dg_lsp.errors import ModelError, size_text
from dg_lsp.models import registry
from dg_lsp.models.registry import AUTO, BASE, BUNDLED, MINI, Preset, locate
from dg_lsp.settings import ModelSettings
from dg_lsp.system import data_folder, processor_name, read_record, system_free, write_private

_HALF_LIFE_MS = 700.0
_MAX_LINE_MS = 3000.0
_INSTRUCTIONS_WORTH = 0.03
_LINE_TOKENS = 10  # mean of single lines of HumanEval-Infilling, their end included, by Qwen2.5-Coder 7B
_TYPED_TOKENS = 4  # of the prompt, decoded for a typed character if the prompt is cached
_FIRST_TOKENS = 64  # of the prompt, decoded at least for the first line in a file: `MIN_PROMPT` of the engine
_PROMPT_TOKENS, _CANVAS_TOKENS = 512, 16
_INFILL_PASSES, _CANVAS_PASSES = 6, 8
"""Passes to a line. Fast-dLLM (arXiv 2505.22618) accepts about 2 tokens a pass at a confidence of 0.9."""
_PASS_MS = 0.5  # of a pass beside the model's own time
_CORE_SECONDS = 5e-11
"""Of the computation with a byte of Q8_0 weights for a token: a Qwen2.5 0.5B and a 1.5B on two AVX2 cores."""
_FREE_TOKENS = {"gpu": 24.0, "igpu": 5.0}
"""Tokens that a GPU computes in the time in which it reads the weights once."""
_BANDWIDTHS = {"gpu": 350e9, "igpu": 100e9}
"""Bytes per second of a GPU whose own is not known: a mid-range card, and a laptop."""


@dataclass(frozen=True, slots=True)
class ComputeDevice:
    """A device of llama.cpp."""

    name: str
    kind: str  # `gpu`, `igpu` if it shares the machine's memory, or `cpu`
    free_memory: int  # bytes; 0 if the driver does not report it
    bandwidth: float = 0.0  # bytes per second; 0: an estimate by its kind
    free_tokens: float = 0.0  # tokens that it computes while it reads the weights once; 0: an estimate by its kind


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine has for a model. Quantities are bytes, and bytes per second."""

    cores: int
    memory_bandwidth: float  # that a pass of a model on the processor reaches; 0 where no models are ranked
    gpus: tuple[ComputeDevice, ...]
    free_memory: int
    free_disk: int
    free_tokens: float = 0.0  # tokens that the processor computes while it reads the weights once; 0: an estimate

    @property
    def gpu(self) -> ComputeDevice | None:
        """The memory that llama.cpp puts layers into: of all cards, else of a GPU that shares the machine's memory.

        Layers are distributed over all cards, so these count as one; a shared memory is no larger than the machine's.
        """
        cards = [gpu for gpu in self.gpus if gpu.kind == "gpu"]
        if cards:
            name = cards[0].name if len(cards) == 1 else f"{len(cards)} GPUs ({cards[0].name}, ...)"
            slowest = min(cards, key=lambda gpu: gpu.bandwidth)
            return replace(slowest, name=name, free_memory=sum(gpu.free_memory for gpu in cards))
        if not self.gpus:
            return None
        shared = self.gpus[0]
        return replace(shared, free_memory=min(shared.free_memory or self.free_memory, self.free_memory))

    @property
    def devices(self) -> tuple[ComputeDevice, ...]:
        """The GPU, if there is one, and the processor."""
        processor = ComputeDevice("CPU", "cpu", self.free_memory, self.memory_bandwidth, self.free_tokens)
        return (processor,) if self.gpu is None else (self.gpu, processor)


@dataclass(frozen=True, slots=True)
class RankedModel:
    """A model that fits into the memory of a machine."""

    preset: Preset
    device: str  # name of the GPU that runs it, or CPU
    line_ms: float  # estimate, while the user types
    first_ms: float  # the same for the first line in a file: a cut prompt has to be decoded

    @property
    def name(self) -> str:
        """The name that settings accept."""
        return self.preset.name

    @property
    def useful_edits(self) -> float:
        """Expected useful edits of a request: an estimate between 0 and 1, and 0 where a line comes too late."""
        if self.line_ms > _MAX_LINE_MS:
            return 0.0
        return float(self.preset.quality * 0.5 ** (self.line_ms / _HALF_LIFE_MS))

    @property
    def worth(self) -> float:
        """What models are ranked by: useful edits, and rewrites by instruction."""
        follows = self.preset.follows_instructions and self.useful_edits > 0
        return self.useful_edits + _INSTRUCTIONS_WORTH * follows


def place(preset: Preset, machine: Machine) -> ComputeDevice | None:
    """The GPU, if the model fits into its free memory; otherwise the processor; None if it fits nowhere."""
    return next((device for device in machine.devices if preset.memory_bytes <= device.free_memory), None)


def fit(preset: Preset, machine: Machine) -> str:
    """Whether a preset fits into the free memory of a machine, and where it would run."""
    device = place(preset, machine)
    if device is None:
        return f"no: {size_text(max(device.free_memory for device in machine.devices))} free"
    is_slow = device.kind == "cpu" and not preset.hardware.startswith("CPU")
    return f"{'slow' if is_slow else 'yes'}: {device.name}"


def line_ms(preset: Preset, bandwidth: float, free_tokens: float, new_tokens: int = _TYPED_TOKENS) -> float:
    """Estimated milliseconds to a line of 10 tokens after a typed character, or after `new_tokens` of the prompt.

    Reading the weights for n tokens takes `size * (1 - (1 - active) ** n) / bandwidth`, where `active` is the share of
    the experts that a token uses; computing them takes `n / free_tokens` times the reading of the active ones. A pass
    takes the longer of both (the roofline model, doi 10.1145/1498765.1498785). Autoregressive models take one pass for
    the new tokens of the prompt and one for each further token; diffusion models with a cached prompt, one and 8 over a
    canvas; those whose prompt sees the canvas, 6 over both.
    """

    def pass_ms(num_tokens: int) -> float:
        read = 1 - (1 - preset.active) ** num_tokens
        computed = preset.active * num_tokens / free_tokens
        return _PASS_MS + 1e3 * preset.size * max(read, computed) / bandwidth

    if preset.family is None or preset.family.is_drafter:  # which may also be decoded token by token
        return pass_ms(new_tokens) + (_LINE_TOKENS - 1) * pass_ms(1)
    if preset.family.prompt_format is PromptFormat.INFILL:
        return _INFILL_PASSES * pass_ms(_PROMPT_TOKENS + _CANVAS_TOKENS)
    return pass_ms(new_tokens) + _CANVAS_PASSES * pass_ms(_CANVAS_TOKENS)


def rank_models(machine: Machine, presets: Iterable[Preset]) -> list[RankedModel]:
    """Models whose memory is free on this machine, by their worth, the best first.

    Licences and the free space of the disk are not considered; presets without a quality are left out.
    """
    ranked = []
    for preset in presets:
        device = place(preset, machine)
        if device is None or not preset.quality:
            continue
        bandwidth = device.bandwidth or _BANDWIDTHS[device.kind]
        free_tokens = device.free_tokens or _FREE_TOKENS.get(device.kind) or machine.cores / (_CORE_SECONDS * bandwidth)
        line, first = (line_ms(preset, bandwidth, free_tokens, num) for num in (_TYPED_TOKENS, _FIRST_TOKENS))
        ranked.append(RankedModel(preset, device.name, line, first))
    return sorted(ranked, key=lambda model: -model.worth)


@dataclass(frozen=True, slots=True)
class Selection:
    """The model that `auto` or `auto-diffusion` selects."""

    name: str
    reason: str  # for a message


def select(machine: Machine, is_here: Callable[[Preset], bool], name: str, bundled: Selection) -> Selection:
    """The best model that is here and fits, for `auto` or `auto-diffusion`; of the bundled ones the one given.

    The reason names a better model that fits, if there is one whose licence needs no agreement.
    """
    own = [preset for preset in BUNDLED if preset.name == bundled.name]
    ranked = [
        model for model in rank_models(machine, (*own, *registry.PRESETS)) if name == AUTO or model.preset.is_diffusion
    ]
    best = next((model for model in ranked if model.preset in own or is_here(model.preset)), None)
    if best is None:
        return Selection(bundled.name, "no larger model fits into the free memory")
    better = next((model for model in ranked[: ranked.index(best)] if not model.preset.terms), None)
    hint = (
        f"; better would be {better.name} ({_expectation(better)}): dg-lsp models pull {better.name}" if better else ""
    )
    if best.name == bundled.name and bundled.reason:
        return Selection(best.name, f"{bundled.reason}{hint}")
    kind = "model" if name == AUTO else "diffusion model"
    return Selection(best.name, f"the best {kind} here, {_expectation(best)}{hint}")


def _expectation(model: RankedModel) -> str:
    share = f"{100 * model.useful_edits:.0f} useful edits in 100 requests"
    share += " and rewrites by instruction" if model.preset.follows_instructions else ""
    return f"about {share}, {model.line_ms:.0f} ms a line on {model.device}, by estimate"


# the bundled model that `auto` takes

AUTO_VARIABLE = "DG_LSP_AUTO_MODEL"
"""Environment variable with the model that `auto` takes instead."""
MAX_LINE_MS = 300.0
"""Longest time of a line of dg-base. A start measures it for the file and this machine, so that only the first start
may load dg-base in vain."""
MIN_FREE_BYTES = 10**9
_TIMES = "line-times.json"


def default_model(settings: ModelSettings) -> Selection:
    """The model that `auto` takes with these settings, and why."""
    if named := os.environ.get(AUTO_VARIABLE):
        return Selection(named, f"{AUTO_VARIABLE} names it")
    try:
        ms = _read_times().get(_time_key(settings), 0.0)
    except ModelError as error:
        return Selection(MINI, str(error))
    if (free := system_free()) < MIN_FREE_BYTES:
        return Selection(MINI, f"{BASE} needs 1 GB of free memory, {size_text(free)} are free")
    if not ms:
        return Selection(BASE, "how long a line takes is measured at the next start")
    return _by_time(ms)


def measured_model(settings: ModelSettings, line_ms: float) -> Selection:
    """The model that `auto` takes once a start of dg-base has measured its line.

    A faster line of an earlier start counts instead, because the machine was less busy then.
    """
    if os.environ.get(AUTO_VARIABLE):
        return default_model(settings)
    record = _read_times()
    key = _time_key(settings)
    record[key] = min(line_ms, record.get(key, line_ms))
    _write_times(record)
    return _by_time(record[key])


def _by_time(ms: float) -> Selection:
    limit = f"at most {MAX_LINE_MS:.0f} ms"
    if ms > MAX_LINE_MS:
        return Selection(MINI, f"a line by {BASE} takes {ms:.0f} ms here, and {limit} are wanted")
    return Selection(BASE, f"a line takes {ms:.0f} ms here, {limit} are wanted")


def forget_times() -> None:
    """The next start measures again."""
    _write_times({})


def _time_key(settings: ModelSettings) -> str:
    """What the time depends on: the file, the processor, its cores and the settings. Raises ModelError."""
    stat = locate(BASE).stat()
    runtime = (settings.threads, settings.gpu_layers, settings.device)
    return " ".join(map(str, (processor_name(), os.cpu_count(), *runtime, stat.st_size, stat.st_mtime_ns)))


def _read_times() -> dict[str, float]:
    """Milliseconds by key; without a readable file all is measured again."""
    path = data_folder() / _TIMES
    return read_record(path, lambda tree: {str(key): float(ms) for key, ms in tree.items()}) or {}


def _write_times(record: dict[str, float]) -> None:
    with contextlib.suppress(OSError):
        data_folder().mkdir(parents=True, exist_ok=True)
        write_private(data_folder() / _TIMES, record)
