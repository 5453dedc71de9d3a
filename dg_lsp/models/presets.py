"""Models known by name that come from a hub: where their files are, what they are, what they need.

Opens no file. A size without a checksum is what others report of the file; the hub says the exact one when it is asked.
"""

from dataclasses import dataclass
from pathlib import Path

from dg_lsp.models.families import (
    DIFFUSION_GEMMA,
    DREAM,
    DREAMON,
    LLADA,
    LLADA_MOE,
    OPEN_DCODER,
    RND1,
    Family,
    for_architecture,
)
from dg_lsp.models.folder import model_folder

__all__ = ["PRESETS", "Preset", "for_architecture"]

CHECKPOINT = ("*.safetensors", "*.json", "*.txt", "*.jinja")
"""Weights as their authors publish them, with tokenizer and configuration; no code."""

REPACK = "dg-lsp models repack {path} -o {ready}"
"""The next step of files that llama.cpp does not run as they are."""

_BESIDE_WEIGHTS = (1 << 30) + (256 << 20) + (256 << 20)
"""Bytes: an automatic KV cache grows up to 1 GiB, a step's logits up to 256 MiB, and a graph has its own buffers."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One model in one quantization."""

    name: str
    repository: str
    """Owner and name on the hub."""
    patterns: tuple[str, ...]
    """Names of its files there; `*` stands for anything."""
    quantization: str
    size: int
    """Bytes of all files."""
    licence: str
    family: Family | None
    """How it wants to be asked; None for a causal model, whose file says it."""
    note: str
    """What it is, for the list."""
    sources: tuple[str, ...]
    """Where size, checksum and licence are from."""
    sha256: str = ""
    """Of its one file; empty where only the hub says it."""
    revision: str = "main"
    """Commit or branch."""
    next_step: str = ""
    """What has to be done with the files before they run: a command, `{path}` standing for what was fetched and
    `{ready}` for what runs."""
    terms: str = ""
    """Address of a licence that is no open source one, which somebody has to agree to."""
    rank: int = 0
    """Which one `auto` takes of those that fit: the highest; 0 is never taken. DiffusionGemma for its results in code
    (LiveCodeBench v6 69.1); then by single lines of HumanEval filled without knowing their length: DreamOn 90.8%,
    Dream-Coder 55.3, LLaDA 48.3, LLaDA-MoE 45.8, Dream 39.4; then those that nobody reports on, and the smallest."""

    @property
    def folder(self) -> Path:
        """Where its files lie once they were fetched."""
        return model_folder(self.name)

    @property
    def is_checkpoint(self) -> bool:
        """A folder of weights in several files, not one GGUF."""
        return len(self.patterns) > 1

    @property
    def is_repacked(self) -> bool:
        """Its next step is dg-lsp's own, and needs nothing that dg-lsp does not have."""
        return self.next_step == REPACK

    @property
    def ready_path(self) -> Path:
        """The file that runs after the next step."""
        return self.folder / f"{self.name}.gguf"

    def command(self, fetched: Path) -> str:
        """The next step, written out for what was fetched."""
        return self.next_step.format(path=fetched, ready=self.ready_path)

    @property
    def memory_bytes(self) -> int:
        """Memory that it needs, with the prompt's cache; of the GPU where it runs there."""
        return self.size + _BESIDE_WEIGHTS

    @property
    def noise(self) -> str:
        """`mask`, `uniform` or `none`."""
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
        sources=("size and checksum of this revision: published by several who run it, 2026-09",),
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
        note="DiffusionGemma: checkpoint for transformers, or to make any GGUF of",
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
        note="DreamOn: fills of any length up to 64 tokens; checkpoint, no GGUF known",
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
        note="Qwen2.5-Coder 7B made a diffusion model",
        rank=7,
        sources=("licence: the original model's card", "size: that of dream-7b, which has the same shape"),
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
        note="Qwen2.5 7B made a diffusion model",
        rank=4,
        sources=("licence: the original model's card", "size and checksum: published by one who ran it, 2026-08"),
    ),
    Preset(
        name="diffucoder-7b",
        repository="Mungert/DiffuCoder-7B-cpGRPO-GGUF",
        patterns=("DiffuCoder-7B-cpGRPO-q4_k_m.gguf",),
        quantization="Q4_K_M",
        size=4_800_000_000,
        licence="Apple's own, no open source licence",
        terms="https://huggingface.co/apple/DiffuCoder-7B-cpGRPO",
        family=DREAM,
        note="Qwen2.5-Coder 7B made a diffusion model",
        sources=("licence: github.com/apple/ml-diffucoder", "size: published by one who ran it"),
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
        sources=("licence: the original model's card", "size and checksum: published by two who ran it"),
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
        sources=("size and checksum: published by one who ran it, 2026-08",),
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
        note="Qwen3 30B-A3B made a diffusion model; 3.3 B active",
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
        note="Qwen2.5-Coder 0.5B made a diffusion model; checkpoint, no GGUF known",
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
        note="autoregressive, fills the middle: the baseline to beat",
        sources=("repository and file: llama.cpp's own --fim-qwen-1.5b-default",),
    ),
)
