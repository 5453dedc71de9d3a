"""Effect of snippets: completions at the same positions without snippets and with each source of snippets.

    python -m dg_benchmarks.context CASES.jsonl.gz FILES.jsonl.xz [--limit 300] [--model dg-mini]

Each line of FILES is a source file, `{"package", "path", "text"}`, of a package that the cases come from. Prints a
Markdown table; its last column is the time to collect the snippets.
"""

import argparse
import json
import lzma
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from dg_lsp.bench.dataset import TestCase, read_cases
from dg_lsp.cli.loading import open_engine
from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import Exclusion
from dg_lsp.context.languages import language_id_of
from dg_lsp.context.snippets import Snippet, Snippets, SnippetSource, most_similar, windows_of, words_of
from dg_lsp.context.tags import imports_of
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest, Priority
from dg_lsp.server.documents import DocumentStore
from dg_lsp.server.workspace_index import WorkspaceIndex
from dg_lsp.settings import ModelSettings, PrivacySettings, Settings

NUM_OPEN = 6
"""Number of other files of the package that count as open."""
NEAR = 1200
"""Characters before and after a position that determine the similarity of other code."""

Collect = Callable[[TestCase], tuple[Snippet, ...]]


class Sources:
    """Snippets of the package of a test case."""

    def __init__(self, root: Path, files: dict[str, str]) -> None:
        self._root = root
        self._files = files
        packages = sorted({path.split("/")[0] for path in files})
        folders = [path.as_uri() for path in (root, *(root / package for package in packages))]
        self._workspace = WorkspaceIndex(DocumentStore(), Exclusion(PrivacySettings(), folders))

    def none(self, _case: TestCase) -> tuple[Snippet, ...]:
        """No snippets."""
        return ()

    def imports(self, case: TestCase) -> tuple[Snippet, ...]:
        """Signatures of imported definitions."""
        language_id = language_id_of(case.path)
        snapshot = Snapshot((self._root / case.path).as_uri(), 0, case.prefix, language_id)
        listed = self._workspace.definitions(snapshot, imports_of(case.prefix), _near(case))
        parts = ((_shown(definition.path, self._root), definition.lines) for definition in listed)
        return tuple(Snippet(SnippetSource.IMPORTS, path, lines) for path, lines in parts)

    def open_files(self, case: TestCase) -> tuple[Snippet, ...]:
        """The most similar parts of some files of the package."""
        words = words_of(_near(case))
        windows = [(path, *most_similar(windows_of(self._files[path]), words)) for path in self._open(case)]
        windows.sort(key=lambda window: -window[1])
        return tuple(Snippet(SnippetSource.OPEN_FILES, path, "\n".join(part.lines)) for path, _, part in windows)

    def anywhere(self, case: TestCase) -> tuple[Snippet, ...]:
        """Arbitrary parts of the same files, to measure the effect of similarity."""
        chance = random.Random(case.id)
        parts = [(path, chance.choice(windows_of(self._files[path]))) for path in self._open(case)]
        return tuple(Snippet(SnippetSource.OPEN_FILES, path, "\n".join(part.lines)) for path, part in parts)

    def all(self, case: TestCase) -> tuple[Snippet, ...]:
        """Snippets of `imports` and `open_files`."""
        return (*self.imports(case), *self.open_files(case))

    def _open(self, case: TestCase) -> list[str]:
        package = case.path.split("/")[0]
        siblings = sorted(path for path in self._files if path.split("/")[0] == package and path != case.path)
        return random.Random(case.id).sample(siblings, min(NUM_OPEN, len(siblings)))


def _near(case: TestCase) -> str:
    return case.prefix[-NEAR:] + case.suffix[:NEAR]


def _shown(path: Path, root: Path) -> str:
    return "/".join(path.relative_to(root).parts[-3:])


def measure(engine: Engine, cases: list[TestCase], collect: Collect) -> tuple[Counter[str], list[bool]]:
    """Totals over all cases, and for each case whether the first line was right."""
    counts: Counter[str] = Counter()
    rights = []
    for case in cases:
        began = time.perf_counter()
        chunks = collect(case)
        counts["ms"] += round(1e3 * (time.perf_counter() - began))
        snippets = Snippets(chunks)
        request = FillRequest(
            case.snapshot, case.offset, snippets=snippets, priority=Priority.INVOKED, early_stop_ms=0.0
        )
        result = engine.fill(request, deadline=float("inf"))
        is_right = result.text.split("\n")[0].rstrip() == case.reference.split("\n")[0].rstrip()
        rights.append(is_right and bool(result.candidates))
        counts["shown"] += bool(result.candidates)
        counts["exact"] += result.text.rstrip() == case.reference.rstrip() and bool(result.candidates)
        counts["with"] += bool(chunks)
        counts["tokens"] += result.prompt_tokens
    return counts, rights


def main() -> None:
    """Parses the arguments, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("files", type=Path)
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--model", default="dg-mini")
    options = parser.parse_args()
    with lzma.open(options.files, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    files = {f"{row['package']}/{row['path']}": row["text"] for row in rows}
    cases = [case for case in read_cases(options.cases) if case.path in files]
    cases = random.Random(0).sample(cases, min(options.limit, len(cases)))
    engine = open_engine(Settings(model=ModelSettings(name=options.model)))
    print("| source | cases with snippets | prompt tokens | shown | exact | first line | gained, lost | ms |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        sources = Sources(root, files)
        before: list[bool] = []
        for collect in (sources.none, sources.imports, sources.open_files, sources.anywhere, sources.all):
            counts, rights = measure(engine, cases, collect)
            before = before or rights
            gained = sum(is_right and not then for is_right, then in zip(rights, before, strict=True))
            lost = sum(then and not is_right for is_right, then in zip(rights, before, strict=True))
            num = len(cases)
            cells = (
                collect.__name__,
                counts["with"],
                f"{counts['tokens'] / num:.0f}",
                *(f"{share / num:.1%}" for share in (counts["shown"], counts["exact"], sum(rights))),
                f"{gained}, {lost}",
                f"{counts['ms'] / num:.1f}",
            )
            print("|", " | ".join(map(str, cells)), "|", flush=True)
    engine.close()


if __name__ == "__main__":
    main()
