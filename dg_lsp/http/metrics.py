"""Prometheus metrics of one server: numbers only, no text and no file names."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dg_lsp.engine.result import FillResult
from dg_lsp.http.completion import num_output_tokens

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The metrics, in a registry of their own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.last_request = time.monotonic()
        """When the last request arrived or was answered, in `time.monotonic` seconds."""
        self.num_open_requests = 0
        self.requests = Counter("dg_lsp_requests", "Requests answered.", ("path", "status"), registry=registry)
        self.seconds = Histogram(
            "dg_lsp_request_seconds",
            "Time from a request to the end of its response.",
            ("path",),
            buckets=_BUCKETS,
            registry=registry,
        )
        self.active = Gauge("dg_lsp_active_requests", "Requests that run or wait for the model.", registry=registry)
        self.disconnects = Counter(
            "dg_lsp_disconnects", "Clients that disconnected before their response.", registry=registry
        )
        self.feedback = Counter("dg_lsp_feedback", "User actions on shown completions.", ("action",), registry=registry)
        self._completions = Counter(
            "dg_lsp_completions", "Results by decoder.", ("decoder", "shown"), registry=registry
        )
        self._tokens = Counter("dg_lsp_tokens", "Tokens of results.", ("kind",), registry=registry)
        self._steps = Counter("dg_lsp_steps", "Forward passes of results.", registry=registry)
        self._stages = Counter("dg_lsp_stage_seconds", "Time of results by stage.", ("stage",), registry=registry)

    def add_result(self, result: FillResult) -> None:
        """Adds one result of the engine."""
        self._completions.labels(result.plan.value, "yes" if result.candidates else "no").inc()
        self._tokens.labels("prompt_cached").inc(result.cached_tokens)
        self._tokens.labels("prompt_decoded").inc(result.prompt_tokens - result.cached_tokens)
        self._tokens.labels("output").inc(num_output_tokens(result))
        self._steps.inc(result.steps)
        for stage in ("prefill", "denoise", "postprocess"):
            self._stages.labels(stage).inc(getattr(result.timings, stage) / 1e3)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class MetricsMiddleware:
    """ASGI middleware that counts every response by path and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: frozenset[str]) -> None:
        """Any path outside of `paths` counts as `other`."""
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request and counts it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics, start, status = self._metrics, time.monotonic(), 500

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        path = scope["path"] if scope["path"] in self._paths else "other"
        metrics.last_request = start
        metrics.num_open_requests += 1
        try:
            await self._app(scope, receive, send_and_note)
        finally:
            metrics.num_open_requests -= 1
            metrics.last_request = time.monotonic()
            metrics.requests.labels(path, str(status)).inc()
            metrics.seconds.labels(path).observe(metrics.last_request - start)
