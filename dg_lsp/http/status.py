"""What the server says of itself: health, model, slots, memory, metrics. Nothing here waits for the model's thread."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dg_lsp import __version__
from dg_lsp.http.service import Service
from dg_lsp.http.wire import answer
from dg_lsp.metrics.prometheus import CONTENT_TYPE
from dg_lsp.system import peak_bytes, resident_bytes, system_free


async def health(request: Request) -> Response:
    """200 once the model is there, 503 before."""
    service: Service = request.app.state.service
    service.engine()
    return answer({"status": "ok"})


async def models(request: Request) -> Response:
    """The one model, in OpenAI's list."""
    service: Service = request.app.state.service
    spec = service.engine().spec
    meta = {
        "n_vocab": spec.vocab_size,
        "n_ctx_train": spec.max_prompt_tokens,
        "noise": spec.noise,
        "prompt_format": spec.prompt_format.value,
        "canvas_lengths": list(spec.canvas_lengths),
    }
    model = {"id": spec.name, "object": "model", "created": service.began, "owned_by": "dg-lsp", "meta": meta}
    return answer({"object": "list", "data": [model]})


async def props(request: Request) -> Response:
    """What llama.cpp's clients ask for before they build a prompt: how long it may be, and how many at a time."""
    service: Service = request.app.state.service
    spec, settings = service.engine().spec, service.settings
    return answer(
        {
            "default_generation_settings": {
                "n_ctx": spec.max_prompt_tokens + spec.longest_block,
                "params": {
                    "n_predict": settings.fill.max_tokens,
                    "seed": 0,
                    "t_max_predict_ms": settings.fill.deadline_ms,
                },
            },
            "total_slots": settings.runtime.num_slots,
            "model_alias": spec.name,
            "is_sleeping": service.worker.is_asleep,
            "build_info": f"dg-lsp {__version__}",
        }
    )


async def slots(request: Request) -> Response:
    """As many entries as prompts are kept; one of them works while the model does, no matter which."""
    service: Service = request.app.state.service
    spec = service.engine().spec
    num_tokens = spec.max_prompt_tokens + spec.longest_block
    found: list[dict[str, Any]] = [
        {"id": number, "n_ctx": num_tokens, "is_processing": number == 0 and service.num_inside > 0}
        for number in range(service.settings.runtime.num_slots)
    ]
    return answer(found)


async def memory(request: Request) -> Response:
    """Bytes that this process holds, and the most it has held, and what of that is the model's.

    null where the system does not say.
    """
    service: Service = request.app.state.service
    service.engine()
    model = service.worker.footprint
    cache = {
        "bytes": model.cache_bytes,
        "tokens": model.cache_cells,
        "tokens_used": model.cache_used,
        "tokens_at_most": model.cache_limit,
    }
    return answer(
        {
            "resident_bytes": resident_bytes(),
            "peak_bytes": peak_bytes(),
            "free_bytes": system_free(),
            "weights_bytes": model.weights_bytes,
            "cache": cache,
            "devices": [
                {"name": device.name, "free_bytes": device.free or None, "total_bytes": device.total or None}
                for device in model.devices
            ],
        }
    )


async def metrics(request: Request) -> Response:
    """Prometheus' text format; also before the model is there."""
    service: Service = request.app.state.service
    return Response(service.counts.exposition(service.num_inside, service.num_shared), media_type=CONTENT_TYPE)
