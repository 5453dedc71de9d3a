"""What the server has done so far, for `/metrics`. Numbers only: no text, no name of a file."""

from dg_lsp.engine.result import FillResult
from dg_lsp.metrics.prometheus import Counter, Histogram

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_NEWEST = 0.2
"""Share of the newest fill in the mean."""


class Counts:
    """Counted on the event loop only."""

    def __init__(self) -> None:
        self.num_answers = 0
        """Requests that were answered, in whatever way."""
        self.num_left = 0
        """Clients that did not wait for their answer."""
        self.mean_seconds = 0.0
        """A fill takes, the newest ones above all."""
        self.requests = Counter("dg_lsp_requests_total", "Requests answered.", ("path", "status"))
        self.seconds = Histogram("dg_lsp_request_seconds", "Time from a request to its answer.", ("path",), SECONDS)
        self.feedback = Counter("dg_lsp_feedback_total", "What users did with what they were shown.", ("action",))
        self.decoders = Counter("dg_lsp_fills_total", "Fills by what was decoded.", ("decoder", "shown"))
        self._sums = Counter("dg_lsp_tokens_total", "Tokens of fills.", ("kind",))
        self._steps = Counter("dg_lsp_steps_total", "Forward passes of fills.", ())
        self._stages = Counter("dg_lsp_stage_seconds_total", "Time of fills by what it went into.", ("stage",))

    def add_fill(self, result: FillResult) -> None:
        """One result of the engine."""
        self.mean_seconds += _NEWEST * (result.timings.total / 1e3 - self.mean_seconds)
        self.decoders.add(1, result.decoder.value, "yes" if result.candidates else "no")
        self._sums.add(result.cached_tokens, "prompt_cached")
        self._sums.add(result.prompt_tokens - result.cached_tokens, "prompt_decoded")
        self._sums.add(result.output_tokens, "answer")
        self._steps.add(result.steps)
        for stage in ("prefill", "denoise", "postprocess"):
            self._stages.add(getattr(result.timings, stage) / 1e3, stage)

    def exposition(self, num_inside: int, num_shared: int) -> str:
        """Prometheus' text format."""
        counters = (self.requests, self.decoders, self._sums, self._steps, self._stages, self.feedback)
        gauge = Counter("dg_lsp_inside", "Requests that are worked on or wait.", (), kind="gauge")
        gauge.add(num_inside)
        left = Counter("dg_lsp_left_total", "Clients that left before their answer.", ())
        left.add(self.num_left)
        shared = Counter("dg_lsp_shared_total", "Requests that the run of the very same one answers.", ())
        shared.add(num_shared)
        return self.seconds.exposition() + "".join(one.exposition() for one in (*counters, gauge, left, shared))
