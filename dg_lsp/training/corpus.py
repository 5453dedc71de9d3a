"""Python files worth learning from: clean text, and why others are not. Knows no tokens, archives or licences."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dg_lsp.training.vocabulary import SPECIALS


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a package; `text` is clean (LF, spaces, no trailing blanks, one newline at the end)."""

    package: str
    path: str
    text: str


NOT_CODE = re.compile(
    r"(^|/)(_?vendor(ed|s)?|_?extern(al|s)?|third_party|thirdparty|packages|tests?|testing|testsuite|test_?data|"
    r"fixtures?|snapshots|_?generated|build/lib|locales?|locale-data|"
    r"idlelib|lib2to3|site-packages|__pycache__|data|conf/locale|unicode\d*|cjk\w*|encodings|migrations|"
    r"pydoc_data|ensurepip|turtledemo|lexers/_\w+|_mapping|_pb2|_pb2_grpc)(/|\.py$)"
    r"|(^|/)(test_\w+|\w+_tests?|conftest|_version|\w+_pb2|\w+_pb2_grpc)\.py$"
)
BENCHMARK = re.compile(r"(?i)human[-_ ]?eval|\bmbpp\b|has_close_elements")
GENERATED = re.compile(r"(?i)auto[- ]?generated|generated (by|from|file)|do not edit|this file was generated|stainless")
SECRET = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY|\bA(?:KIA|SIA)[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{50,}"
    r"|\bglpat-[\w-]{20}|\bsk-[A-Za-z0-9]{32,}|\bsk-(?:ant|proj)-[\w-]{32,}|\b[sr]k_live_[0-9A-Za-z]{20,}"
    r"|\bxox[abprs]-[0-9A-Za-z-]{20,}|hooks\.slack\.com/services/T\w{8,}/|\beyJ[\w-]{20,}\.eyJ[\w-]{20,}"
    r"|\bAIza[\w-]{35}\b|\bya29\.[\w-]{40,}|\bhf_[A-Za-z]{34}\b|\bnpm_[A-Za-z0-9]{36}\b|\bpypi-AgE[\w-]{50,}"
    r"|\bSG\.[\w-]{22}\.[\w-]{43}\b|\bAccountKey=[A-Za-z0-9+/]{60,}"
    # a long value of letters and digits under a name that says what it is
    r"|(?i:secret|token|passw(?:or)?d|api_?key|access_?key)\w*[\"']?\s*[:=]\s*[\"']"
    r"(?=[A-Za-z+/_-]*\d)(?=[\d+/_-]*[A-Za-z])[A-Za-z0-9+/_-]{32,}={0,2}[\"']"
)

MIN_CHARS, MAX_CHARS = 200, 200_000
MAX_LINE, MAX_MEAN_LINE = 400, 80  # characters; above: minified, or a table of data
MAX_DIGITS, MAX_NON_ASCII = 0.12, 0.03  # shares of the characters


def is_code_path(path: str) -> bool:
    """Whether a file's path promises code people wrote: no tests, vendored copies, locale tables or benchmarks."""
    return not (NOT_CODE.search(path) or BENCHMARK.search(path))


def decoded(raw: bytes) -> str | None:
    """The text of a file as an editor would show it, or None where it is no UTF-8."""
    try:
        text = raw.decode("utf-8").lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n").expandtabs(4)
    except UnicodeDecodeError:
        return None
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n") + "\n"


def refusal(text: str) -> str | None:
    """Why a text is refused, in one word, or None."""
    if not MIN_CHARS <= len(text) <= MAX_CHARS:
        return "size"
    lines = text.split("\n")
    if GENERATED.search(text[:1000]):
        return "generated"
    if BENCHMARK.search(text):
        return "benchmark"
    if SECRET.search(text):
        return "secret"
    if max(map(len, lines)) > MAX_LINE or len(text) / len(lines) > MAX_MEAN_LINE:
        return "minified"
    digits = sum(map(text.count, "0123456789"))
    non_ascii = len(text) - len(text.encode("ascii", "ignore"))
    if digits > MAX_DIGITS * len(text) or non_ascii > MAX_NON_ASCII * len(text):
        return "data"
    if any(special in text for special in SPECIALS):
        return "special"
    return None


def capped(files: Iterable[SourceFile], max_chars: int) -> list[SourceFile]:
    """At most `max_chars` of every package, chosen by hash: one giant must not become the language."""
    spent: Counter[str] = Counter()
    kept = []
    for file in sorted(files, key=lambda f: hashlib.blake2b(f.path.encode()).digest()):
        if spent[file.package] + len(file.text) <= max_chars:
            spent[file.package] += len(file.text)
            kept.append(file)
    return sorted(kept, key=lambda f: (f.package, f.path))
