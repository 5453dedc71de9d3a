"""transformers' DiffusionGemma as a reference: one teacher-forced step at a time, noise given from outside.

Sampled tokens are never compared: where the weights are random, a rounding in the seventh digit changes most of them.
"""

from dataclasses import dataclass

import numpy as np
import tiny_diffusiongemma as tiny
import torch
from transformers import DiffusionGemmaForBlockDiffusion, DynamicCache

EVERYTHING = {"full_attention": None, "sliding_attention": None}


def calm_model(shape):
    """Random weights whose layers add little, so that a rounding stays one from step to step; logits of many nats.

    Of plain random weights a change of 0.1% in what conditions a step changes half of its answers.
    """
    model = tiny.tiny_model(shape)
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight.mul_(4)
        model.model.decoder.self_conditioning.down_proj.weight.mul_(0.3)
        for name, weight in model.named_parameters():
            if "post_attention_layernorm" in name or name.endswith("post_feedforward_layernorm.weight"):
                weight.mul_(0.1)
    return model


@dataclass(frozen=True)
class Forced:
    """One step: what went in, and what came out."""

    canvas: np.ndarray
    temperature: float
    logits: np.ndarray
    """As the model hands them out, shape (L, V)."""
    entropy: np.ndarray
    said: np.ndarray | None
    """The tempered logits that it was conditioned on, those of the step before."""


class Reference:
    def __init__(self, checkpoint):
        torch.set_num_threads(1)
        options = {"dtype": torch.float32, "attn_implementation": "eager", "experts_implementation": "eager"}
        self.model = DiffusionGemmaForBlockDiffusion.from_pretrained(checkpoint, **options).eval()
        self.window = self.model.config.text_config.sliding_window
        self.vocab_size = self.model.config.text_config.vocab_size

    @torch.no_grad()
    def encoded(self, prompt):
        cache = DynamicCache(config=self.model.config.get_text_config(decoder=True))
        self.model.model.encoder(input_ids=torch.tensor([prompt.tolist()]), past_key_values=cache)
        return cache

    @torch.no_grad()
    def logits(self, cache, num_prompt, canvas, said=None, *, per_token=False):
        """`said` are the last step's logits, tempered. `per_token` windows like llama.cpp: each position its own."""
        masks = EVERYTHING
        if per_token and num_prompt + len(canvas) > self.window:
            masks = {"full_attention": None, "sliding_attention": self._windows(num_prompt, len(canvas))}
        positions = torch.arange(num_prompt, num_prompt + len(canvas))[None]
        out = self.model(
            decoder_input_ids=torch.tensor([canvas.tolist()]),
            past_key_values=cache,
            decoder_position_ids=positions,
            decoder_attention_mask=masks,
            self_conditioning_logits=None if said is None else torch.from_numpy(said)[None],
        )
        return out.logits[0].float().numpy()

    def steps(self, prompt, canvas, temperatures, noise, *, frozen=None, bound=0.1, per_token=False):
        """Teacher-forced steps. Accepted positions take the argmax, the others the noise, frozen ones stay."""
        from dg_lsp.diffusion.samplers import accept

        cache, said, done = self.encoded(prompt), None, []
        frozen = np.zeros(len(canvas), dtype=np.bool_) if frozen is None else frozen
        for temperature, fresh in zip(temperatures, noise, strict=True):
            logits = self.logits(cache, len(prompt), canvas, said, per_token=per_token)
            tempered = (logits / np.float32(temperature)).astype(np.float32)
            entropy = np.where(frozen, 0, entropy_of(tempered))
            done.append(Forced(canvas, temperature, logits, entropy, said))
            said = tempered
            free = np.where(accept(entropy.astype(np.float32), bound), logits.argmax(axis=1), fresh)
            canvas = np.where(frozen, canvas, free).astype(np.int32)
        return done

    def _windows(self, num_prompt, length):
        """Added to the attention of sliding layers: shape (1, 1, length, prompt tokens they keep + length)."""
        kept = min(num_prompt, self.window - 1)
        keys = torch.arange(num_prompt - kept, num_prompt + length)
        queries = torch.arange(num_prompt, num_prompt + length)[:, None]
        is_seen = (queries - keys < self.window) | (keys >= num_prompt)
        return torch.where(is_seen, 0.0, torch.finfo(torch.float32).min)[None, None]


def entropy_of(logits):
    """Nats, shape (L,)."""
    return torch.distributions.Categorical(logits=torch.from_numpy(logits)).entropy().numpy()


def clear_bounds(entropy, tolerance):
    """Entropy bounds at which no difference so small can change what is accepted."""
    ascending = np.sort(entropy).astype(np.float64)
    before = np.cumsum(ascending) - ascending
    for count in range(1, len(entropy)):
        apart, margin = ascending[count] - ascending[count - 1], ascending[count - 1] / 2
        if apart > 2 * tolerance and margin > count * tolerance:
            yield (before[count] + before[count - 1]) / 2
