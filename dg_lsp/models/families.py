"""How the open diffusion models want to be asked: what their authors' code and configurations say.

Their GGUF files are silent about it. Opens no file; every family names its sources.
"""

from dataclasses import dataclass, replace

from dg_lsp.canvas.spec import MaskSampling, PromptFormat, Sampling, UniformSampling, UnmaskOrder


@dataclass(frozen=True, slots=True)
class Family:
    """Models of one architecture that are asked alike."""

    name: str
    architecture: str
    """llama.cpp's name of it, `general.architecture` of a GGUF file."""
    sampling: Sampling
    end_ids: tuple[int, ...]
    prompt_format: PromptFormat
    canvas_lengths: tuple[int, ...]
    """Recommended, ascending: the models themselves take any."""
    max_prompt_tokens: int
    """Recommended: what a keystroke may cost, and what was trained for."""
    sources: tuple[str, ...]
    hole_lengths: tuple[int, ...] = ()
    """Masks between frozen text that are raced where the length is not known."""
    is_shifted: bool = False
    """Logits at a position say what comes after it."""
    template: str = ""
    marks: tuple[str, ...] = ()
    """What tells it from other models of its architecture: parts of `general.name`, lower case, hyphens between words.
    A family without any is what the architecture is taken for."""

    @property
    def noise(self) -> str:
        """`mask` or `uniform`."""
        return "mask" if isinstance(self.sampling, MaskSampling) else "uniform"

    @property
    def mask_id(self) -> int | None:
        """The mask token; None for uniform noise, which has none."""
        return self.sampling.mask_id if isinstance(self.sampling, MaskSampling) else None


_CANVASES = (16, 32, 64, 128)
_HOLES = (4, 8, 16, 32)
_THRESHOLD = 0.9  # Fast-dLLM, arXiv 2505.22618, for LLaDA and Dream
_MAX_STEPS = 64


def _masks(mask_id: int) -> MaskSampling:
    return MaskSampling(mask_id, _THRESHOLD, _MAX_STEPS, UnmaskOrder.CONFIDENT)


DREAM = Family(
    name="dream",
    architecture="dream",
    sampling=_masks(151_666),
    end_ids=(151_643, 151_645),
    prompt_format=PromptFormat.PINNED,
    canvas_lengths=_CANVASES,
    hole_lengths=_HOLES,
    max_prompt_tokens=1024,
    is_shifted=True,
    sources=(
        "github.com/DreamLM/Dream: context 2048, shifted logits, mask <|mask|>",
        "llama.cpp examples/diffusion: shift_logits unless the file says otherwise",
    ),
)
"""Dream, Dream-Coder and DiffuCoder: Qwen2.5's layers without a causal mask."""

DREAMON = Family(
    name="dreamon",
    architecture="dream",
    sampling=replace(_masks(151_666), max_denoising_steps=128, expand_id=151_667, delete_id=151_643, max_free=64),
    end_ids=(151_643, 151_645),
    prompt_format=PromptFormat.PINNED,
    canvas_lengths=_CANVASES,
    hole_lengths=(16,),
    max_prompt_tokens=960,
    is_shifted=True,
    marks=("dreamon",),
    sources=(
        "arXiv 2602.01326: expand and delete; 91.0% of single lines from 16 masks, 92.1% from 64; up to 1,024 tokens",
        "github.com/DreamLM/DreamOn: eval/configs/eval_infill.yaml, 128 steps, at most 64 tokens",
        "huggingface.co/Dream-org/DreamOn-v0-7B: <|expand|> 151667, delete_token_id is the end token's",
    ),
)
"""Dream-Coder that learned to make room and to take it away: one start length does."""

LLADA = Family(
    name="llada",
    architecture="llada",
    sampling=_masks(126_336),
    end_ids=(126_081, 126_348),
    prompt_format=PromptFormat.PINNED,
    canvas_lengths=_CANVASES,
    hole_lengths=_HOLES,
    max_prompt_tokens=1024,
    sources=("github.com/ML-GSAI/LLaDA: generate.py, context 4096, no shift", "llama.cpp conversion/llada.py"),
)

LLADA_MOE = Family(
    name="llada-moe",
    architecture="llada-moe",
    sampling=_masks(156_895),
    end_ids=(156_892,),
    prompt_format=PromptFormat.PINNED,
    canvas_lengths=_CANVASES,
    hole_lengths=_HOLES,
    max_prompt_tokens=1024,
    sources=(
        "llama.cpp conversion/llada.py: mask 156895, no shift",
        "huggingface.co/inclusionAI/LLaDA-MoE-7B-A1B-Instruct",
    ),
)

RND1 = Family(
    name="rnd1",
    architecture="rnd1",
    sampling=_masks(151_669),
    end_ids=(151_645, 151_643),
    prompt_format=PromptFormat.PINNED,
    canvas_lengths=_CANVASES,
    hole_lengths=_HOLES,
    max_prompt_tokens=1024,
    is_shifted=True,
    sources=("github.com/RadicalNumerics/RND1: rnd/sampling.py, mask 151669, predictions shifted by one",),
)

OPEN_DCODER = Family(
    name="open-dcoder",
    architecture="qwen2",
    sampling=_masks(151_665),
    end_ids=(151_643,),
    prompt_format=PromptFormat.PINNED,
    canvas_lengths=_CANVASES,
    hole_lengths=_HOLES,
    max_prompt_tokens=1024,
    is_shifted=True,
    marks=("open-dcoder", "open-dllm"),
    sources=(
        "github.com/pengzhangzhi/Open-dLLM: eval/eval_infill, Dream's sampler over Qwen2 without a causal mask",
        "huggingface.co/fredzzp/open-dcoder-0.5B: <M> 151665 in added_tokens.json",
    ),
)
"""Its file is one of `qwen2`, as those of causal models: only the name tells."""

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
"""Files of the open pull requests; one that was repacked says all this itself."""

FAMILIES = (DREAMON, OPEN_DCODER, DREAM, LLADA, LLADA_MOE, RND1, DIFFUSION_GEMMA)


def for_architecture(architecture: str, name: str = "") -> Family | None:
    """The family of a GGUF file from its `general.architecture` and its `general.name` (or the file's own name).

    None where the architecture is no diffusion model's, or only some of its models are and the name says nothing.
    """
    simple = name.lower().replace(" ", "-").replace("_", "-")
    alike = [family for family in FAMILIES if family.architecture == architecture]
    marked = (family for family in alike if any(mark in simple for mark in family.marks))
    return next(marked, None) or next((family for family in alike if not family.marks), None)
