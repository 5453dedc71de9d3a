"""The endpoints that report about the server: health, model, properties, slots, memory and metrics."""

from dataclasses import fields
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request

from dg_lsp import __version__
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.engine.scheduler import Scheduler, ready_engine
from dg_lsp.http import response_schemas as replies
from dg_lsp.http.request_schemas import SAMPLER_FIELDS
from dg_lsp.http.service import RequestService, language_header
from dg_lsp.sampler_options import SAMPLER_NAMES
from dg_lsp.system import peak_bytes, resident_bytes, system_free

ModelName = Annotated[str, Query(description="Of two models, the one to report on; without it that of completions.")]
router = APIRouter()


@router.get("/v1/health")
@router.get("/health")
async def health(service: RequestService) -> replies.StatusResponse:
    """200 when the model of completions is loaded, 503 before."""
    _ = service.engine
    return replies.StatusResponse()


@router.get("/models")
@router.get("/v1/models")
async def models(service: RequestService, http: Request) -> replies.ModelsResponse:
    """The loaded models, that of completions first: a header names its languages, as in an answer."""
    http.state.headers = language_header(service.engine.spec)
    engines = filter(None, (ready_engine(one.ready) for one in service.models.schedulers))
    return replies.ModelsResponse(data=[_model_object(engine.spec, service.started) for engine in engines])


def _model_object(spec: ModelSpec, created: int) -> replies.ModelObject:
    meta: dict[str, str | int | list[int]] = {
        "n_vocab": spec.vocab_size,
        "n_ctx_train": spec.max_prompt_tokens,
        "noise": spec.noise,
        "prompt_format": spec.prompt_format.value,
        "canvas_lengths": list(spec.canvas_lengths),
    }
    return replies.ModelObject(id=spec.name, created=created, meta=meta)


@router.get("/props")
async def props(service: RequestService, model: ModelName = "") -> replies.PropsResponse:
    """What clients of llama.cpp read before they build a prompt: its length and the number of slots."""
    scheduler, completion = service.scheduler_named(model), service.settings.completion
    spec = service.engine_of(scheduler).spec
    params = {"n_predict": completion.max_tokens, "seed": 0, "t_max_predict_ms": completion.deadline_ms}
    return replies.PropsResponse(
        default_generation_settings={"n_ctx": context_size(scheduler, spec), "params": {**params, **_sampler(spec)}},
        total_slots=service.settings.model.num_slots,
        model_alias=spec.name,
        is_sleeping=scheduler.is_asleep,
        build_info=f"dg-lsp {__version__}",
    )


def _sampler(spec: ModelSpec) -> dict[str, int | float]:
    """The model's own values of the sampler, under the names of the requests."""
    if spec.sampling is None:
        return {}
    names = [one.name for one in fields(spec.sampling) if one.name in SAMPLER_NAMES]
    values = {SAMPLER_FIELDS.get(name, name): getattr(spec.sampling, name) for name in names}
    return {**values, "canvas_length": spec.canvas_length or spec.longest_block}


@router.get("/slots")
async def slots(service: RequestService, http: Request, model: ModelName = "") -> list[replies.SlotObject]:
    """One object per slot of the prompt cache; none for a remote server."""
    scheduler = service.scheduler_named(model)
    size = context_size(scheduler, service.engine_of(scheduler).spec)
    return [
        replies.SlotObject(
            id=number,
            n_ctx=size,
            is_processing=slot.is_busy,
            n_prompt_tokens=slot.num_tokens if http.state.is_operator else None,
        )
        for number, slot in enumerate(scheduler.slots)
    ]


def context_size(scheduler: Scheduler, spec: ModelSpec) -> int:
    """Tokens of prompt and text that one slot takes; while the model is unloaded, those of a fill."""
    return scheduler.footprint.context_size or spec.max_prompt_tokens + spec.longest_block


@router.get("/memory")
async def memory(service: RequestService, http: Request, model: ModelName = "") -> replies.MemoryResponse:
    """Memory of this process and of a model; 503 before it is loaded."""
    _ = service.engine
    footprint = service.scheduler_named(model).footprint
    return replies.MemoryResponse(
        resident_bytes=resident_bytes(),
        peak_bytes=peak_bytes(),
        free_bytes=system_free(),
        weights_bytes=footprint.weights_bytes,
        cache={
            "bytes": footprint.cache_bytes,
            "tokens": footprint.cache_cells,
            **({"tokens_used": footprint.cache_used} if http.state.is_operator else {}),
            "tokens_at_most": footprint.cache_limit,
        },
        devices=[
            {"name": device.name, "free_bytes": device.free or None, "total_bytes": device.total or None}
            for device in footprint.devices
        ],
    )


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: RequestService, http: Request) -> Response:
    """Prometheus' text format, also before the model is loaded."""
    return Response(service.metrics.exposition(is_operator=http.state.is_operator), media_type=CONTENT_TYPE_PLAIN_0_0_4)
