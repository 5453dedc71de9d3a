"""The plans `canvas` and `race`: open canvases denoised block by block."""

from collections.abc import Generator

from dg_lsp.canvas.fim import next_canvas, open_canvas
from dg_lsp.canvas.plan import CanvasPlan, TokenIds, token_ids
from dg_lsp.canvas.spec import Sampling
from dg_lsp.diffusion.loop import race
from dg_lsp.engine.draft import Draft
from dg_lsp.engine.filling import Progress, Task


class CanvasFilling:
    """See `Filling`. The slot holds the prompt and all canvases but the last afterwards."""

    def __init__(self, task: Task, sampling: Sampling) -> None:
        self._task = task
        self._sampling = sampling
        self._end_ids = token_ids(task.denoiser.spec.end_ids)
        self._steps = 0

    def prefill(self, slot: int, prompt_ids: TokenIds, num_kept: int) -> int:
        """See `Filling.prefill`."""
        del num_kept
        return self._task.denoiser.prefill(slot, prompt_ids)

    def run(self, slot: int, prompt_ids: TokenIds) -> Generator[Progress, None, tuple[Draft, ...]]:
        """See `Filling.run`; only the first candidate goes on into further canvases."""
        task, spec = self._task, self._task.denoiser.spec
        length = task.limits.canvas_length
        plan = open_canvas(prompt_ids, spec, length, task.rng)
        drafts = yield from self._block(0, slot, [plan] * task.limits.num_canvases, Draft.empty())
        first, block = drafts[0], 0
        while not task.enough.is_met(first) and len(first.ids) == (block + 1) * length:
            plan = next_canvas(plan, first.ids[block * length :], spec, task.rng)
            if len(plan.prompt_ids) > task.max_length or task.limits.is_over():
                break
            block += 1
            task.denoiser.prefill(slot, plan.prompt_ids)
            (first,) = yield from self._block(block, slot, [plan], first)
        return (first, *drafts[1:])

    def _block(
        self, block: int, slot: int, plans: list[CanvasPlan], before: Draft
    ) -> Generator[Progress, None, tuple[Draft, ...]]:
        task = self._task
        drafts = (before,) * len(plans)
        if task.limits.is_over():
            return drafts
        for steps in race(task.denoiser, slot, plans, self._sampling, task.rng):
            self._steps += 1
            drafts = tuple(before.settle(step, self._end_ids) for step in steps)
            yield Progress(block, self._steps, steps[0], drafts[0])
            is_done = all(step.stop or task.enough.is_met(draft) for step, draft in zip(steps, drafts, strict=True))
            if is_done or task.limits.is_over():
                break
        return drafts
