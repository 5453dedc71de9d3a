"""The code in a chat's answer: what stands in its first fence, less what the buffer says already before the cursor."""

import re

_OPENING = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n", re.MULTILINE)


def code_in(answer: str) -> tuple[str, bool]:
    """The code so far and whether it is complete; an answer without a fence is code from its first character on.

    As long as a fence may still be coming there is no code.
    """
    opening = _OPENING.search(answer)
    if opening is None:
        return ("", False) if answer.lstrip()[:1] in ("", "`", "~") else (answer, False)
    rest, mark = answer[opening.end() :], opening[1]
    closing = re.search(rf"^[ \t]*{re.escape(mark)}[ \t]*$", rest, re.MULTILINE)
    if closing is not None:
        return rest[: closing.start()].removesuffix("\n"), True
    return rest, False


def after_line(code: str, line: str) -> str:
    """`code` without the beginning of its first line that is `line`, the cursor's; models like to repeat it.

    Nothing as long as it may still become that.
    """
    wanted = line.strip()
    if not wanted:
        # the cursor stands in the indentation: what is there is not said again
        return code[len(line) :] if code.startswith(line) else code
    for said in (line, line.lstrip()):
        if code.startswith(said):
            return code[len(said) :]
    indented = code.lstrip(" \t")
    if indented.startswith(line.lstrip()):
        return indented[len(line.lstrip()) :]
    return "" if line.startswith(code) or line.lstrip().startswith(code) else code
