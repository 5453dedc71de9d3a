"""A scheduler that runs nothing."""

from concurrent.futures import Future
from types import SimpleNamespace

from dg_lsp.backends.scripted import MASK_SPEC


class FakeScheduler:
    """Records the URIs and the prompts that would be decoded in idle time."""

    def __init__(self, spec=MASK_SPEC):
        self.ready = Future()
        self.ready.set_result(SimpleNamespace(spec=spec))
        self.warmed = []

    def warm_up(self, request):
        self.warmed.append((request.snapshot.uri, request.snapshot.text[: request.offset]))
