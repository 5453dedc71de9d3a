"""Chat templates in Jinja, as model files and transformers have them.

A template is a program that came with a model file, so it runs in a sandbox in a child process with limits of memory
and time. The child imports nothing but Jinja.
"""

import contextlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NoReturn

THINKING = "enable_thinking"
"""The switch of templates that let a model think before it answers, a variable of transformers and llama.cpp."""
MAX_SOURCE = 1 << 18
"""Characters of a template; the longest published ones have 20,000."""
MAX_TEXT = 1 << 22
"""Characters that a template may write."""
MAX_SECONDS = 5
_MAX_BYTES = 1 << 29  # memory of the child
_GENERATION = re.compile(r"\{%(-?)\s*(?:end)?generation\s*(-?)%\}")
"""Marks around the assistant's text, which transformers uses for training. Comments take their place."""
_NUM_CACHED = 8
"""Rendered conversations in the cache: all fills have the same question. Few, because they may be long."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The Jinja source of a chat template, and the tokens that it may name."""

    source: str
    bos: str = ""
    eos: str = ""

    @property
    def can_think(self) -> bool:
        """The template has a switch for thinking."""
        return THINKING in self.source


TEMPLATES = {
    # as transformers' Gemma 4 processor writes it: with thinking off, the answer follows an empty thought; with
    # thinking on, a token begins the system's turn
    "gemma4": ChatTemplate(
        "{{ bos_token }}{% if enable_thinking and messages[0].role != 'system' %}<|turn>system\n<|think|>\n<turn|>\n"
        "{% endif %}{% for message in messages %}"
        "<|turn>{{ 'model' if message.role == 'assistant' else message.role }}\n"
        "{% if enable_thinking and loop.first and message.role == 'system' %}<|think|>\n{% endif %}"
        "{{ message.content | trim }}<turn|>\n"
        "{% endfor %}<|turn>model\n{% if not enable_thinking %}<|channel>thought\n<channel|>{% endif %}",
        bos="<bos>",
    )
}
"""Templates of our own, by the names that model files use."""


class TemplateRefusedError(Exception):
    """The template accepts no such conversation; the message is the template's."""


class TemplateError(Exception):
    """The template is damaged, too large or too slow."""


Messages = tuple[tuple[str, str], ...]
"""Role and text of each message."""


@lru_cache(_NUM_CACHED)
def render(template: ChatTemplate, messages: Messages, is_thinking: bool = False) -> str:
    """The conversation up to the beginning of the answer's text, rendered by a child process.

    Raises:
        TemplateRefusedError: the template does not accept these messages.
        TemplateError: the template cannot be used.
    """
    from dg_lsp.system import NEUTRAL_FOLDER, python_command, python_environment

    if len(template.source) > MAX_SOURCE:
        raise TemplateError(f"it has {len(template.source):,} characters, and {MAX_SOURCE:,} are allowed")
    query = json.dumps([template.source, template.bos, template.eos, messages, is_thinking])
    slow = f"it takes more than {MAX_SECONDS} seconds"
    try:
        child = subprocess.run(
            python_command(__name__),
            input=query.encode(),
            capture_output=True,
            timeout=4 * MAX_SECONDS,  # of a busy machine; the child itself counts its processor time
            env=python_environment(),
            cwd=NEUTRAL_FOLDER,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TemplateError(slow) from None
    except OSError as error:
        raise TemplateError(f"Python cannot be started for it ({error})") from error
    try:
        kind, text = json.loads(child.stdout)
    except ValueError:
        raise TemplateError(slow if child.returncode < 0 else "it needs too much memory") from None
    if kind == "text":
        return str(text)
    raise (TemplateRefusedError if kind == "refusal" else TemplateError)(text)


def render_here(template: ChatTemplate, messages: Messages, is_thinking: bool = False) -> str:
    """Like `render`, in this process: for templates of our own."""
    pieces, length = [], 0
    values = {
        "messages": [{"role": role, "content": text} for role, text in messages],
        "bos_token": template.bos,
        "eos_token": template.eos,
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
        THINKING: is_thinking,
    }
    source = _GENERATION.sub(r"{#\1 \2#}", template.source)
    for piece in _environment().from_string(source).generate(values):
        pieces.append(piece)
        length += len(piece)
        if length > MAX_TEXT:
            raise TemplateError(f"it writes more than {MAX_TEXT:,} characters")
    return "".join(pieces)


def _environment() -> Any:
    """What transformers gives a chat template (`utils/chat_template_utils.py`)."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: object) -> NoReturn:
        raise TemplateRefusedError(str(message))

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)  # Jinja's own filter escapes for HTML
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _limit_resources() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))


def main() -> None:
    """The child process: a query on standard input, one JSON array on standard output."""
    source, bos, eos, messages, is_thinking = json.loads(sys.stdin.buffer.read())
    _limit_resources()
    answer: tuple[str, str]
    try:
        answer = "text", render_here(ChatTemplate(source, bos, eos), tuple(map(tuple, messages)), is_thinking)
    except TemplateRefusedError as error:
        answer = "refusal", str(error)[:500]
    except MemoryError:
        answer = "error", "it needs too much memory"
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        answer = "error", f"{type(error).__name__}: {error}"[:500]
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
