"""Which files of a package are suitable for training, by their path, language and text."""

import re
import tomllib
from collections.abc import Collection
from pathlib import Path

from dg_lsp.context.exclusion import mask_secrets
from dg_lsp.context.languages import language_id_of
from dg_training.tokenizer import SPECIAL_TOKENS

PYTHON = "python"
CODE = frozenset({PYTHON, "typescript", "javascript", "go", "rust", "c", "shellscript", "sql"})
DATA = frozenset({"json", "toml", "yaml", "markdown", "html", "css"})
SAME = {"typescriptreact": "typescript", "jsonc": "json", "scss": "css"}
"""Language ids that count as another language."""

PATTERNS = {
    name: "|".join(listed) for name, listed in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}
NOT_CODE = re.compile(rf"(^|/)({PATTERNS['python_names']})(/|\.py$)|(^|/)({PATTERNS['python_modules']})\.py$")
NOT_SOURCE = re.compile(rf"(?i)(^|/)({PATTERNS['folders']})/|{PATTERNS['paths']}")
"""The same for files in other languages than Python."""
JAVASCRIPT_SUFFIXES = (".js", ".mjs", ".cjs", ".jsx")
DECLARATIONS = re.compile(r"\.d\.[cm]?ts$")
BENCHMARK_NAME = re.compile(r"(?i)human[-_ ]?eval|\bmbpp\b|has_close_elements")
GENERATED = re.compile(r"(?i)auto[- ]?generated|generated (by|from|file)|do not edit|this file was generated|stainless")
TRANSPILED = re.compile(PATTERNS["transpiled"])
GENERATOR = re.compile(r"(?i)<meta [^>]*\bgenerator\b")  # pages of documentation made from comments
FLOW = re.compile(r"@flow\b")  # JavaScript with types that is no TypeScript
CPLUSPLUS = re.compile(r"^\s*(class|namespace|template|using|public:|private:)\b|\bstd::|\bnullptr\b", re.MULTILINE)
MIN_CHARS, MAX_CHARS = 200, 200_000
MAX_DATA_CHARS = 30_000  # of a file in a data language: larger ones are tables, not written by hand
MAX_LINE, MAX_MEAN_LINE = 400, 80  # characters; longer lines: minified code or a data table
MAX_PROSE_LINE, MAX_MEAN_PROSE_LINE = 2000, 200  # the same for Markdown: many authors write a paragraph in one line
MAX_DIGITS, MAX_NON_ASCII = 0.12, 0.03  # shares of the characters


def language_of_file(path: str, text: str = "") -> str | None:
    """Language id of a file, or None if its language has no place in the corpus. C headers count as C."""
    name = path.rpartition("/")[2]
    language = "c" if name.endswith(".h") else language_id_of(name, text)
    if language == PYTHON and not name.endswith(".py"):
        return None
    language = SAME.get(language, language)
    return language if language in CODE or language in DATA else None


def is_code_path(path: str) -> bool:
    """False for the paths of tests, vendored copies, generated files, locale tables and benchmarks."""
    excluded = NOT_CODE if path.endswith(".py") else NOT_SOURCE
    return not (excluded.search(path) or BENCHMARK_NAME.search(path))


def is_typescript(paths: Collection[str]) -> bool:
    """True for the paths of a package that is written in TypeScript; its JavaScript is then a copy by a compiler.

    Packages in JavaScript have examples in TypeScript; compilers write up to three files for each source file.
    """
    sources = [path for path in paths if is_code_path(path) and not DECLARATIONS.search(path)]
    num_typescript = sum(path.endswith((".ts", ".tsx")) for path in sources)
    return 4 * num_typescript > sum(path.endswith(JAVASCRIPT_SUFFIXES) for path in sources)


def is_compiled_path(path: str, paths: Collection[str], *, has_typescript: bool) -> bool:
    """True for JavaScript and declarations that a compiler wrote; `paths` are all files of the package."""
    stem, _, suffix = path.rpartition(".")
    if DECLARATIONS.search(path):
        return has_typescript
    if not path.endswith(JAVASCRIPT_SUFFIXES):
        return False
    return has_typescript or f"{path}.map" in paths or f"{stem}.d.{suffix.replace('js', 'ts')}" in paths


def decode(raw: bytes, language: str = PYTHON) -> str | None:
    """The normalized text of a file, see `CorpusFile`; None if it is not UTF-8. Tabs are expanded in Python only."""
    try:
        text = raw.decode("utf-8").lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        return None
    text = text.expandtabs(4) if language == PYTHON else text
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n") + "\n"


def rejection_reason(text: str, language: str = PYTHON) -> str | None:
    """Why a text is not suitable for training, in one word, or None."""
    if not MIN_CHARS <= len(text) <= (MAX_DATA_CHARS if language in DATA else MAX_CHARS):
        return "size"
    if GENERATED.search(text[:1000]):
        return "generated"
    if BENCHMARK_NAME.search(text):
        return "benchmark"
    if mask_secrets(text) != text:
        return "secret"
    is_prose = language == "markdown"
    longest, mean = (MAX_PROSE_LINE, MAX_MEAN_PROSE_LINE) if is_prose else (MAX_LINE, MAX_MEAN_LINE)
    lines = text.split("\n")
    if max(map(len, lines)) > longest or len(text) / len(lines) > mean:
        return "minified"
    digits = sum(map(text.count, "0123456789"))
    non_ascii = len(text) - len(text.encode("ascii", "ignore"))
    if digits > MAX_DIGITS * len(text) or non_ascii > MAX_NON_ASCII * len(text):
        return "data"
    if language == "html" and GENERATOR.search(text[:1000]):
        return "generated"
    if language in ("javascript", "typescript") and (TRANSPILED.search(text) or FLOW.search(text[:1000])):
        return "transpiled"
    if language == "c" and CPLUSPLUS.search(text):
        return "C++"
    return "special" if any(special in text for special in SPECIAL_TOKENS) else None
