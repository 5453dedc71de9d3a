"""From a plan's name to the plan at work."""

from dg_lsp.canvas.spec import PromptFormat, Sampling
from dg_lsp.engine.filling import Filling, Task
from dg_lsp.engine.plans.canvas import CanvasFilling
from dg_lsp.engine.plans.causal import CausalFilling
from dg_lsp.engine.plans.lookup import LookupFilling
from dg_lsp.engine.plans.name import PlanName
from dg_lsp.engine.plans.pinned import PinnedFilling
from dg_lsp.engine.plans.verify import VerifiedFilling
from dg_lsp.errors import RequestError


def filling_of(plan: PlanName, task: Task, sampling: Sampling | None) -> Filling:
    """A plan other than `auto` at work. A race has as many canvases as the task's limits say.

    Raises:
        RequestError: the model lacks what the plan needs.
    """
    spec = task.denoiser.spec
    if plan.needs_causal_head and not spec.has_causal_head:
        seen = " in the format pinned" if spec.prompt_format is PromptFormat.PINNED else ""
        raise RequestError(f"{spec.name} has no causal head{seen}, which the plan {plan} needs; choose canvas or race")
    if plan is PlanName.CAUSAL:
        return CausalFilling(task)
    if plan is PlanName.LOOKUP:
        return LookupFilling(task)
    if sampling is None:
        raise RequestError(f"{spec.name} has no canvas, which the plan {plan} needs; choose causal or lookup")
    if plan is PlanName.DRAFT_VERIFY:
        return VerifiedFilling(task, sampling)
    is_pinned = spec.prompt_format is PromptFormat.PINNED
    return PinnedFilling(task, sampling) if is_pinned else CanvasFilling(task, sampling)
