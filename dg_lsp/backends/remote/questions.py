"""What a chat is asked in words. Its answer cannot be begun for it, so it is told how to begin."""

from dg_lsp.canvas.instruct import fence_of
from dg_lsp.canvas.templates import REWRITE
from dg_lsp.context.prompt import Prompt

_FILL = (
    "A gap in {path} is marked <GAP>. Write the {language} code that belongs there. Answer with one fenced code block"
    " and nothing else. It holds only what stands for <GAP>: nothing that comes before or after it."
    "\n\n{fence}{language}\n{prefix}<GAP>{suffix}\n{fence}"
)


def fill_question(prompt: Prompt) -> str:
    """The file with a gap marked."""
    return _FILL.format(
        path=prompt.path or "a file",
        language=prompt.language or "text",
        fence=fence_of(prompt),
        prefix=prompt.prefix,
        suffix=prompt.suffix,
    )


def rewrite_question(prompt: Prompt) -> str:
    """The same as local models are asked."""
    words = {
        "path": prompt.path or "a file",
        "language": prompt.language or "text",
        "fence": fence_of(prompt),
        "instruction": prompt.instruction,
    }
    selection = prompt.selection.removesuffix("\n") + "\n"
    code = prompt.prefix + REWRITE.opening + selection + REWRITE.closing + prompt.suffix
    return REWRITE.before.format(**words) + code + REWRITE.after.format(**words)
