"""What a model on llama.cpp holds of the memory. For any thread: nothing here waits for the model's."""

from dg_lsp.backends.llamacpp.devices import gpus
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.diffusion.denoiser import DeviceMemory, Footprint


def footprint_of(model: LlamaModel, num_cells: int, limit: int, num_used: int) -> Footprint:
    """Cells by now, at most and in use."""
    used = gpus() if model.on_gpu else ()
    return Footprint(
        weights_bytes=model.weights.gpu + model.weights.host,
        cache_bytes=num_cells * model.kv_bytes_per_token if model.has_cache else 0,
        cache_cells=num_cells,
        cache_limit=limit,
        cache_used=num_used,
        devices=tuple(DeviceMemory(device.name, device.memory_free, device.memory_total) for device in used),
    )
