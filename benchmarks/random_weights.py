"""DiffusionGemma with random weights, made where it is used: never on disk, never twice in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from shape import Shape
from torch import nn
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion


def random_model(shape: Shape, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Any:
    """A `DiffusionGemmaForBlockDiffusion`; encoder and decoder share their weights, as in the real one."""
    config = DiffusionGemmaConfig(**shape.config())
    config._experts_implementation = "grouped_mm"
    with _without_weights():
        model = DiffusionGemmaForBlockDiffusion(config)
    model.model.encoder.vision_tower = model.model.encoder.embed_vision = None
    model.tie_weights()
    generator = torch.Generator(device).manual_seed(seed)
    made: dict[int, nn.Parameter] = {}
    for name, module in list(model.named_modules()):
        for key, weight in list(module._parameters.items()):
            if weight is None:
                continue
            if id(weight) not in made:
                made[id(weight)] = _made(f"{name}.{key}", weight, device, dtype, generator)
            module._parameters[key] = made[id(weight)]
        for key, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[key] = buffer.to(device)
    return model.eval()


def _made(
    name: str, weight: torch.Tensor, device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> nn.Parameter:
    values = torch.empty(weight.shape, dtype=dtype, device=device)
    if weight.dim() < 2:
        values.fill_(1.0)
    elif "embed_tokens" in name:
        values.normal_(0, 0.02, generator=generator)
    else:
        values.normal_(0, weight.shape[-1] ** -0.5, generator=generator)
    return nn.Parameter(values, requires_grad=False)


@contextmanager
def _without_weights() -> Iterator[None]:
    """Modules made inside have their parameters on no device; buffers, which are computed, are real."""
    register = nn.Module.register_parameter

    def weightless(module: nn.Module, name: str, weight: nn.Parameter | None) -> None:
        register(module, name, weight)
        if weight is not None:
            module._parameters[name] = nn.Parameter(weight.to("meta"), requires_grad=False)

    nn.Module.register_parameter = weightless
    try:
        yield
    finally:
        nn.Module.register_parameter = register
