"""Keys and values of prompts: one growing cache for each slot.

The caches follow transformers' `DynamicCache`. `StaticCache` computes wrong logits for this model as soon as the prompt
fills the sliding window (transformers 5.23), and the sliding layers of `DynamicCache` cannot crop past the window.
"""

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

_MAX_ROLLBACK = 1024
"""Tokens before the window that a sliding layer keeps, so that a crop does not encode the prompt again."""


class RollbackSlidingLayer(DynamicSlidingWindowLayer):
    """A sliding layer that keeps `rollback` tokens more than its window, so that it can be cropped by that many."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, sliding_window: int, rollback: int) -> None:
        super().__init__(sliding_window)
        self._max_tokens = sliding_window - 1 + rollback

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends states of shape (1, heads, N, width); returns the window before them and the states."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        num_new = key_states.shape[-2]
        # the length that `get_mask_sizes` reported for this pass
        num_visible = min(self.cumulative_length, self.sliding_window - 1) + num_new
        self.cumulative_length += num_new
        keys = torch.cat([self.keys, key_states], dim=-2)
        values = torch.cat([self.values, value_states], dim=-2)
        # a copy where tokens are dropped: a view would keep all of them in memory
        self.keys = keys[:, :, -self._max_tokens :].contiguous()
        self.values = values[:, :, -self._max_tokens :].contiguous()
        return keys[:, :, -num_visible:], values[:, :, -num_visible:]

    def can_crop(self, num_tokens: int) -> bool:
        """Whether the window before the last `num_tokens` tokens is complete."""
        window = min(self.sliding_window - 1, self.cumulative_length - num_tokens)
        return 0 <= window <= self.keys.shape[-2] - num_tokens

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last tokens; their number is negative, as in transformers."""
        num_left = self.keys.shape[-2] + tokens_to_remove
        self.cumulative_length += tokens_to_remove
        self.keys, self.values = self.keys[:, :, :num_left], self.values[:, :, :num_left]


class PrefixCache:
    """The prompt of one slot in every layer."""

    def __init__(self, text_config: Any, prompt_limit: int) -> None:
        self._config = text_config
        self._rollback = min(prompt_limit, _MAX_ROLLBACK)
        self.layers = self._empty()
        """What transformers calls `past_key_values`."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return int(self.layers.get_seq_length())

    def crop(self, length: int) -> int:
        """Removes tokens until `length` are left; returns how many are left: 0 where a window would be incomplete."""
        num_tokens = self.length - length
        if num_tokens > 0:
            sliding = [layer for layer in self.layers.layers if layer.is_sliding]
            if not length or not all(layer.can_crop(num_tokens) for layer in sliding):
                self.layers = self._empty()
                return 0
            for layer in self.layers.layers:
                layer.crop(-num_tokens)
        return self.length

    def states(self, number: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Keys and values of a layer, shape (1, heads, N, width), of a sliding layer only its window; None if empty."""
        if not self.length:
            return None
        layer = self.layers.layers[number]
        num_kept = self._num_visible(is_sliding=layer.is_sliding)
        return layer.keys[:, :, -num_kept:], layer.values[:, :, -num_kept:]

    def mask(self, canvas_numbers: torch.Tensor, *, is_sliding: bool) -> torch.Tensor:
        """Which keys each of T canvas tokens attends to in one kind of layer, shape (1, 1, T, N + T).

        These are the `states` of the prompt, then all tokens of the same canvas, by `canvas_numbers` of shape (T,).
        """
        same_canvas = canvas_numbers[:, None] == canvas_numbers[None, :]
        in_prompt = same_canvas.new_ones((len(same_canvas), self._num_visible(is_sliding=is_sliding)))
        return torch.cat([in_prompt, same_canvas], dim=1)[None, None]

    def _num_visible(self, *, is_sliding: bool) -> int:
        return min(self.length, self._config.sliding_window - 1) if is_sliding else self.length

    def _empty(self) -> DynamicCache:
        cache = DynamicCache(config=self._config)
        for number, layer in enumerate(cache.layers):
            if layer.is_sliding:
                cache.layers[number] = RollbackSlidingLayer(layer.sliding_window, self._rollback)
        return cache


def prefix_bytes(text_config: Any, num_tokens: int, itemsize: int) -> int:
    """Bytes of the keys and values of a prompt."""
    sliding = min(num_tokens, text_config.sliding_window - 1 + min(num_tokens, _MAX_ROLLBACK))
    widths = [2 * layer.num_key_value_heads * layer.head_dim for layer in text_config.per_layer_config]
    lengths = [sliding if kind == "sliding_attention" else num_tokens for kind in text_config.layer_types]
    return itemsize * sum(width * length for width, length in zip(widths, lengths, strict=True))
