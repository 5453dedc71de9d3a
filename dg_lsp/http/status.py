"""Endpoints that report on the server, none of which waits for the model."""

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response

from dg_lsp import __version__
from dg_lsp.http.metrics import CONTENT_TYPE
from dg_lsp.http.schemas import (
    MemoryResponse,
    ModelObject,
    ModelsResponse,
    PropsResponse,
    SlotObject,
    StatusResponse,
)
from dg_lsp.http.service import LoadedService, RunningService
from dg_lsp.system import peak_bytes, resident_bytes, system_free

router = APIRouter()


@router.get("/health")
async def health(_service: LoadedService) -> StatusResponse:
    """200 when the model is loaded, 503 before."""
    return StatusResponse()


@router.get("/v1/models")
async def models(service: LoadedService) -> ModelsResponse:
    """The loaded model."""
    spec = service.engine.spec
    meta: dict[str, str | int | list[int]] = {
        "n_vocab": spec.vocab_size,
        "n_ctx_train": spec.max_prompt_tokens,
        "noise": spec.noise,
        "prompt_format": spec.prompt_format.value,
        "canvas_lengths": list(spec.canvas_lengths),
    }
    return ModelsResponse(data=[ModelObject(id=spec.name, created=service.started, meta=meta)])


@router.get("/props")
async def props(service: LoadedService) -> PropsResponse:
    """What clients of llama.cpp read before they build a prompt: its length and the number of slots."""
    spec, settings = service.engine.spec, service.settings
    completion = settings.completion
    params = {"n_predict": completion.max_tokens, "seed": 0, "t_max_predict_ms": completion.deadline_ms}
    return PropsResponse(
        default_generation_settings={"n_ctx": spec.max_prompt_tokens + spec.longest_block, "params": params},
        total_slots=settings.model.num_slots,
        model_alias=spec.name,
        is_sleeping=service.worker.is_asleep,
        build_info=f"dg-lsp {__version__}",
    )


@router.get("/slots")
async def slots(service: LoadedService) -> list[SlotObject]:
    """One object per cached prompt; the first one is processing while the model runs."""
    spec = service.engine.spec
    num_tokens = spec.max_prompt_tokens + spec.longest_block
    return [
        SlotObject(id=number, n_ctx=num_tokens, is_processing=number == 0 and service.num_active > 0)
        for number in range(service.settings.model.num_slots)
    ]


@router.get("/memory")
async def memory(service: LoadedService) -> MemoryResponse:
    """Memory of this process and of the model."""
    footprint = service.worker.footprint
    return MemoryResponse(
        resident_bytes=resident_bytes(),
        peak_bytes=peak_bytes(),
        free_bytes=system_free(),
        weights_bytes=footprint.weights_bytes,
        cache={
            "bytes": footprint.cache_bytes,
            "tokens": footprint.cache_cells,
            "tokens_used": footprint.cache_used,
            "tokens_at_most": footprint.cache_limit,
        },
        devices=[
            {"name": device.name, "free_bytes": device.free or None, "total_bytes": device.total or None}
            for device in footprint.devices
        ],
    )


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: RunningService) -> Response:
    """Prometheus' text format, also before the model is loaded."""
    return Response(service.metrics.exposition(), media_type=CONTENT_TYPE)
