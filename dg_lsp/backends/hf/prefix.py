"""The keys and values of one prompt: grown token by token, taken back exactly, never padded.

transformers' own `DynamicCache` semantics. Its `StaticCache` is wrong for this model as soon as the prompt fills the
sliding window (5.23: the last canvas key is masked, canvas keys overwrite the prompt's), and its own sliding layers
cannot be taken back past the window.
"""

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

_LONGEST_ROLLBACK = 1024
"""Tokens that typing may take back past the window without encoding everything again."""


class RollbackSlidingLayer(DynamicSlidingWindowLayer):
    """A sliding layer that keeps `rollback` tokens more than its window, so that so many can be taken back.

    `keys` and `values` are what the canvas may look at: exactly the last `sliding_window - 1` tokens.
    """

    def __init__(self, sliding_window: int, rollback: int) -> None:
        super().__init__(sliding_window)
        self._kept_keys = self._kept_values = torch.empty(0)
        self._rollback = rollback

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends states of shape (1, heads, N, width); returns them after the window before them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._kept_keys, self._kept_values = key_states[:, :, :0], value_states[:, :, :0]
        keys = torch.cat([self._kept_keys, key_states], dim=-2)
        values = torch.cat([self._kept_values, value_states], dim=-2)
        # what `get_mask_sizes` has promised to the mask of this very pass
        num_seen = min(self.cumulative_length, self.sliding_window - 1) + key_states.shape[-2]
        self.cumulative_length += key_states.shape[-2]
        keep = self.sliding_window - 1 + self._rollback
        self._expose(keys[:, :, -keep:], values[:, :, -keep:])
        return keys[:, :, -num_seen:], values[:, :, -num_seen:]

    def can_crop(self, num_tokens: int) -> bool:
        """Whether the window before the last `num_tokens` is still all there."""
        window = min(self.sliding_window - 1, self.cumulative_length - num_tokens)
        return 0 <= window <= self._kept_keys.shape[-2] - num_tokens

    def crop(self, tokens_to_remove: int) -> None:
        """Takes the last tokens back; their number is negative, as transformers counts."""
        if not self.is_initialized or not tokens_to_remove:
            return
        left = self._kept_keys.shape[-2] - abs(tokens_to_remove)
        self.cumulative_length -= abs(tokens_to_remove)
        self._expose(self._kept_keys[:, :, :left], self._kept_values[:, :, :left])

    def _expose(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        start = keys.shape[-2] - min(self.sliding_window - 1, self.cumulative_length)
        self._kept_keys, self._kept_values = keys, values
        self.keys, self.values = keys[:, :, start:], values[:, :, start:]


class PrefixCache:
    """One slot's prompt in every layer."""

    def __init__(self, text_config: Any, prompt_limit: int) -> None:
        self._config = text_config
        self._rollback = min(prompt_limit, _LONGEST_ROLLBACK)
        self.layers = self._empty()

    @property
    def length(self) -> int:
        """Tokens held."""
        return int(self.layers.get_seq_length())

    def crop(self, length: int) -> int:
        """Takes tokens back until `length` are left; returns how many are: none where the window is lost."""
        num_tokens = self.length - length
        if num_tokens > 0:
            if not length or not all(layer.can_crop(num_tokens) for layer in self._sliding()):
                self.layers = self._empty()
                return 0
            for layer in self.layers.layers:
                layer.crop(-num_tokens)
        return self.length

    def _sliding(self) -> list[RollbackSlidingLayer]:
        return [layer for layer in self.layers.layers if layer.is_sliding]

    def _empty(self) -> DynamicCache:
        cache = DynamicCache(config=self._config)
        for number, layer in enumerate(cache.layers):
            if layer.is_sliding:
                cache.layers[number] = RollbackSlidingLayer(layer.sliding_window, self._rollback)
        return cache


def prefix_bytes(text_config: Any, num_tokens: int, itemsize: int) -> int:
    """Bytes of one slot's keys and values for a prompt of so many tokens."""
    rollback = min(num_tokens, _LONGEST_ROLLBACK)
    total = 0
    for number, kind in enumerate(text_config.layer_types):
        layer = text_config.per_layer_config[number]
        held = num_tokens if kind != "sliding_attention" else text_config.sliding_window - 1 + rollback
        total += 2 * layer.num_key_value_heads * layer.head_dim * min(num_tokens, held) * itemsize
    return total
