"""How a context gets more cells when prompts need them."""

from collections.abc import Sequence

from dg_lsp.backends.llamacpp.budget import ContextBudget
from dg_lsp.backends.llamacpp.context import LlamaContext
from dg_lsp.errors import ModelMemoryError


def grow(context: LlamaContext, budget: ContextBudget, num_missing: int, sequences: Sequence[int] = ()) -> None:
    """So many more cells at least; none where the budget allows no more. What these sequences hold stays.

    Raises:
        ModelMemoryError: there is no memory for them; nothing has changed.
        BackendError: what the sequences held is lost.
    """
    refusal: ModelMemoryError | None = None
    for num_cells in budget.larger(context.num_cells, num_missing):
        try:
            context.grow(num_cells, sequences)
        except ModelMemoryError as error:
            refusal = error
        else:
            return
    if refusal is not None:
        raise refusal
