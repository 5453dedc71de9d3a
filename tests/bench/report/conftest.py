"""A report to look at, and a real Chromium to look with."""

import pytest
from chromium import start_browser

from dg_lsp.bench.report.record import Film, Report, Table
from dg_lsp.engine.result import Cell, Frame
from dg_lsp.metrics.attempt import Attempt, Shown

HOSTILE = (
    "</script></style><img src=x onerror=alert(1)>\"'><svg onload=alert(2)> <!-- ]]> &lt; "
    "\0\x1b[31m \u202etxet\ud800 $lead"
)
"""What a model may say, given enough time."""


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    browser = start_browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


def attempt_of(site, way="diffusion", **changes):
    """One request; useful and exact unless the changes say otherwise."""
    facts = {
        "kind": "line-end",
        "decoder": "diffusion",
        "want": "return a\n    b",
        "shown": (Shown(40.0, "return a\n    b"),),
        "is_exact": True,
        "passes": None,
        "latency_ms": 40.0,
        "steps": 4,
        "tokens": 9,
        "confidence": -0.1,
        "rejection": None,
        "prefill_ms": 10.0,
        "model_ms": 30.0,
    }
    return Attempt(site=site, way=way, **{**facts, **changes})


def frame_of(step, tokens, num_committed, *, block=0):
    """A canvas whose first cells are accepted; an empty token is an end token."""
    cells = tuple(
        Cell(text, 0.95 if i < num_committed else 0.65 - 0.1 * i, i < num_committed, not text)
        for i, text in enumerate(tokens)
    )
    return Frame(block, step, cells, "".join(tokens[:num_committed]))


def film_of(site="pkg/shapes.py:12", tokens=("self", ".height", " =", " height", "", ""), **changes):
    """Two positions a step."""
    frames = tuple(frame_of(i, tokens, 2 * i) for i in range(1, len(tokens) // 2 + 1))
    facts = {"want": "self.height = height", "frames": frames, "before": "def f():\n    ", "after": "\n\nnext()"}
    return Film(site=site, **{**facts, "text": "self.height = height", "why": "exact", **changes})


@pytest.fixture
def make_attempt():
    return attempt_of


@pytest.fixture
def make_frame():
    return frame_of


@pytest.fixture
def make_film():
    return film_of


def report_of(text="plain"):
    """A report of everything; `text` stands wherever a file, a model or a person may have written something."""
    ways = ("diffusion", "autoregressive", text)
    attempts = {
        way: [
            attempt_of(f"right {text}", way, shown=(Shown(20.0 * i, "return b"), Shown(30.0 * i, "return a"))),
            attempt_of(
                f"wrong {text}",
                way,
                kind="block",
                shown=(Shown(50.0, text),),
                latency_ms=260.0,
                is_exact=False,
                want=text,
            ),
            attempt_of(
                f"late {text}", way, shown=(Shown(1800.0, "return a"),), latency_ms=1800.0, steps=70, decoder=text
            ),
            attempt_of(f"none {text}", way, kind=text, shown=(), is_exact=False, rejection=text),
            attempt_of("tested", way, passes=True, latency_ms=260.0),
        ]
        for i, way in enumerate(ways, 1)
    }
    film = film_of(f"{text}.py", tokens=(text, "\n", "    ", "x" * 40, "", ""), want=text, before=text, after=text)
    return Report(
        title=f"bench {text}",
        machine={"cpu": text, "cores": 2, "versions": {"dg-lsp": "1", "gone": None}},
        options={"decoder": text, "execute": False, "suffix_lines": [1, 2]},
        attempts=attempts,
        films=[film_of(), film],
        notes=[f"length_knowledge: none {text}"],
        tables=[Table(f"Ratios {text}", ("way", "ratio"), ((text, "1.4×"),), note=text)],
        date="2026-01-31",
    )


@pytest.fixture
def report():
    return report_of()


@pytest.fixture
def hostile_report():
    return report_of(HOSTILE)


@pytest.fixture
def hostile_text():
    return HOSTILE
