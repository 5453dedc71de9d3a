"""What a chat is asked in words. Its answer cannot be begun for it, so it is told how to begin."""

from dg_lsp.canvas.chat import EXTRA_BEFORE, EXTRA_CHUNK, REWRITE, fence_of
from dg_lsp.context.window import Prompt

_FILL = (
    "A gap in {path} is marked <GAP>. Write the {language} code that belongs there. Answer with one fenced code block"
    " and nothing else. It holds only what stands for <GAP>: nothing that comes before or after it."
    "\n\n{fence}{language}\n{prefix}<GAP>{suffix}\n{fence}"
)


def fill_question(prompt: Prompt) -> str:
    """The file with a gap marked, after code from elsewhere where there is any."""
    return _elsewhere(prompt) + _FILL.format(
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


def _elsewhere(prompt: Prompt) -> str:
    fence, language = fence_of(prompt), prompt.language
    chunks = [
        EXTRA_CHUNK.format(path=chunk.path, fence=fence, language=language, text=chunk.text.strip("\n") + "\n")
        for chunk in prompt.extra.chunks
    ]
    return EXTRA_BEFORE + "".join(chunks) if chunks else ""
