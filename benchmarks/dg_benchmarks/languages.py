"""Postprocessing of correct and damaged fills in every language with a grammar, on real source files.

    python -m dg_benchmarks.languages CACHE [--languages go rust] [--middles 2000] [--show 5]
    python -m dg_benchmarks.languages CACHE --folder go=/path/to/sources

The files come from permissively licensed packages (languages.toml), which npm, pip's index and apt deliver; they are
kept in CACHE. Every middle that is cut out of a file is judged as a fill: it should come back unchanged. Damaged
middles should be refused, or corrected, where the grammar's parser rejects the file with them. Prints a Markdown table;
times are processor time of the thread, the best of three judgements.
"""

import argparse
import hashlib
import io
import random
import re
import subprocess
import sys
import tarfile
import time
import tomllib
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dg_lsp.bench.dataset import MAX_CHARS, MIN_CHARS, Source, TestCase, cuts, is_source
from dg_lsp.context.document import Cursor, Snapshot
from dg_lsp.context.languages import grammar_of, language_id_of, language_of
from dg_lsp.postprocess.validate import Candidate, Rejection, judge

SOURCES: dict[str, list[str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MAX_FILES = 400
LONG_FILE = 2000  # lines of the file in which time is measured
NUM_TIMED = 300
NUM_REPEATS = 3  # of each timed judgement: the best one counts, since other work on a machine makes single ones slower
_INDEX = "application/vnd.pypi.simple.v1+json"
_FILE_HEADER = re.compile(
    r"^(?:<\?php|#!|(?:package|import|from|use|using|require|require_relative)\b|#include|namespace [\w.\\]+;).*\n",
    re.MULTILINE,
)
"""Lines that stand in a file once."""
DAMAGES = ("bracket", "repeat", "quote")


def files_of(source: str, cache: Path) -> Iterator[tuple[str, str]]:
    """Names and texts of the files of a package, downloaded once."""
    registry, _, package = source.partition(":")
    folder = cache / hashlib.sha256(source.encode()).hexdigest()[:12]
    if not (folder.is_dir() and any(folder.iterdir())):
        folder.mkdir(parents=True, exist_ok=True)
        _download(registry, package, folder)
    archive = next(folder.iterdir())
    if archive.suffix == ".deb":
        command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
        data = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    else:
        data = archive.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for entry in tar:
            if entry.isfile() and MIN_CHARS <= entry.size <= MAX_CHARS and (file := tar.extractfile(entry)):
                yield entry.name, file.read().decode("utf-8", "replace")


def _download(registry: str, package: str, folder: Path) -> None:
    if registry == "npm":
        subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    elif registry == "deb":
        subprocess.run(["apt-get", "download", package], cwd=folder, check=True, capture_output=True)
    else:
        name, _, version = package.partition("==")
        request = urllib.request.Request(f"https://pypi.org/simple/{name}/", headers={"Accept": _INDEX})
        with urllib.request.urlopen(request) as page:
            links = re.findall(r'https?://[^"#]+', page.read().decode())
        archive = re.compile(rf"{re.sub('[-_]', '[-_]', name)}-{re.escape(version)}\.tar\.gz", re.IGNORECASE)
        url = next((link for link in links if archive.fullmatch(link.rpartition("/")[2])), None)
        if url is None:
            raise OSError(f"{package} has no sdist")
        urllib.request.urlretrieve(url, folder / url.rpartition("/")[2])


def sources_of(language_id: str, cache: Path, folder: str | None) -> list[Source]:
    """The language's files, each text once."""
    by_text: dict[str, Source] = {}
    if folder:
        paths = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        files: Iterator[tuple[str, str]] = ((str(path), path.read_text(errors="replace")) for path in paths)
    else:
        files = (file for source in SOURCES[language_id] for file in files_of(source, cache))
    for name, text in files:
        if language_id_of(name, text) == language_id and "/vendor" not in name and is_source(text):
            source = Source(name, text.replace("\r\n", "\n"), language_id)
            by_text.setdefault(source.text, source)
    sources = list(by_text.values())
    random.Random(0).shuffle(sources)
    return sources[:MAX_FILES]


def damaged(middle: TestCase, damage: str, rng: random.Random) -> str | None:
    """The middle with a bracket dropped, a line repeated or a quote opened; None if it has nothing to damage."""
    text = middle.reference
    if damage == "bracket":
        places = [place for place, char in enumerate(text) if char in "()[]{}<>"]
        return None if not places else text[: (at := rng.choice(places))] + text[at + 1 :]
    if damage == "quote":
        at = rng.randrange(len(text))
        return text[:at] + '"' + text[at:]
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    return None if len(lines) == 1 else "\n".join([*lines[: at + 1], *lines[at:]])


def judged(middle: TestCase, text: str) -> tuple[Candidate | Rejection, float]:
    """The judgement of a fill and its processor time in milliseconds."""
    buffer = middle.prefix + middle.suffix
    offset = len(middle.prefix)
    snapshot = Snapshot("file:///x", buffer, middle.language)
    cursor = Cursor.at(buffer, offset)
    started = time.thread_time()
    result = judge(text.encode(), snapshot=snapshot, offset=offset, cursor=cursor, max_lines=None, score=0.0)
    return result, 1000 * (time.thread_time() - started)


def is_rejected(middle: TestCase, text: str) -> bool:
    """True if the grammar's parser finds an error in the file with this text as the middle."""
    from tree_sitter import Parser

    grammar = grammar_of(language_of(middle.language).grammar)
    whole = (middle.prefix + text + middle.suffix).encode()
    return grammar is not None and Parser(grammar).parse(whole).root_node.has_error


def outcome(result: Candidate | Rejection, expected: str) -> str:
    """What a correct fill became; blanks at line ends do not count."""
    expected = "\n".join(line.rstrip() for line in expected.split("\n"))
    if isinstance(result, Rejection):
        return "refused"
    return "unchanged" if result.text == expected else "changed"


def measure(language_id: str, sources: list[Source], num: int, seed: int, show: int) -> list[str]:
    """The language's cells of the table."""
    outcomes = Counter[str]()
    harm = Counter[str]()
    hidden = 0
    shown = 0
    rng = random.Random(1)
    middles = list(cuts(sources, num, seed))
    for middle in middles:
        result, _ = judged(middle, middle.reference)
        name = outcome(result, middle.reference)
        outcomes[name] += 1
        hidden += isinstance(result, Candidate) and result.fault is not None
        if name != "unchanged" and shown < show:
            shown += 1
            _print(middle, middle.reference, result)
    for middle in middles:
        if is_rejected(middle, middle.reference):
            continue
        text = damaged(middle, rng.choice(DAMAGES), rng)
        if text is None or not is_rejected(middle, text):
            continue
        result, _ = judged(middle, text)
        is_broken = isinstance(result, Candidate) and is_rejected(middle, result.text)
        name = "refused" if isinstance(result, Rejection) else "shown" if is_broken else "mended"
        harm[name] += 1
        if name == "shown" and shown < 2 * show:
            shown += 1
            _print(middle, text, result)
    times = _times([_longer(middle) for middle in middles[:NUM_TIMED]])
    p99 = sorted(times)[len(times) * 99 // 100]
    total, num_harm = sum(outcomes.values()), sum(harm.values())
    shares = [f"{100 * outcomes[name] / total:.2f} %" for name in ("unchanged", "changed", "refused")]
    damage = [f"{100 * harm[name] / num_harm:.1f} %" if num_harm else "-" for name in ("refused", "mended", "shown")]
    cells = [language_id, f"{len(sources)}", f"{total}", *shares, f"{100 * hidden / total:.2f} %", f"{num_harm}"]
    return [*cells, *damage, f"{p99:.1f}"]


def _times(middles: Sequence[TestCase]) -> list[float]:
    """Milliseconds of one judgement of each; all in turn, so that no repetition finds its results in a cache."""
    rounds = ([judged(middle, middle.reference)[1] for middle in middles] for _ in range(NUM_REPEATS))
    return [min(times) for times in zip(*rounds, strict=True)]


def _longer(middle: TestCase) -> TestCase:
    """The middle in a file of at least `LONG_FILE` lines: more of its definitions stand above and below."""
    whole = middle.prefix + middle.reference + middle.suffix + "\n"
    start = max((match.end() for match in _FILE_HEADER.finditer(whole)), default=0)
    body = whole[start:]
    repeated = body * (LONG_FILE // (2 * max(1, body.count("\n"))) + 1)
    is_in_header = len(middle.prefix) < start
    prefix = middle.prefix if is_in_header else whole[:start] + repeated + middle.prefix[start:]
    return replace(middle, prefix=prefix, suffix=middle.suffix + "\n" + repeated * (1 + is_in_header))


def _print(middle: TestCase, text: str, result: Candidate | Rejection) -> None:
    before, after = middle.prefix.split("\n")[-4:], middle.suffix.split("\n")[:4]
    name = result.reason if isinstance(result, Rejection) else "-> " + result.text
    print(
        "-" * 20, middle.kind, "\n" + "\n".join(before) + f"«{text}»" + "\n".join(after), f"\n{name}", file=sys.stderr
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--languages", nargs="*", default=list(SOURCES))
    parser.add_argument("--folder", action="append", default=[], help="LANGUAGE=PATH: sources instead of packages")
    parser.add_argument("--middles", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the places where middles are cut")
    parser.add_argument(
        "--half", type=int, choices=(0, 1), help="every second file: one half to improve on, one to report"
    )
    parser.add_argument("--show", type=int, default=0, help="print so many failures of each language")
    options = parser.parse_args()
    folders = dict(entry.split("=", 1) for entry in options.folder)
    print("| language | files | middles | unchanged | changed | refused | hidden unasked ", end="")
    print("| damaged | refused | mended | shown | p99, ms |")
    print("|---" * 12 + "|")
    for language_id in options.languages:
        try:
            sources = sources_of(language_id, options.cache.resolve(), folders.get(language_id))
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"| {language_id} | not fetched: {error}")
            continue
        sources = sources if options.half is None else sources[options.half :: 2]
        if not sources:
            print(f"| {language_id} | no files")
            continue
        cells = measure(language_id, sources, options.middles, options.seed, options.show)
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
