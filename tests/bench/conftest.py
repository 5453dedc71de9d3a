import pytest
from chromium import start_browser

from dg_lsp.bench.metrics import Attempt, Table, summary_table, visible
from dg_lsp.bench.report import benchmark_page
from dg_lsp.bench.runner import Machine, Run, RunHeader
from dg_lsp.bench.timeline import Moment, Timeline
from dg_lsp.engine.ttfue import Verdict


def attempt_of(case="s", contender="diffusion", shown=(40.0, "return a"), **changes):
    """An attempt that showed this (ms, text), a useful and exact one by default."""
    fields = {
        "kind": "line-end",
        "decoder": "canvas",
        "reference": "return a",
        "text": shown[1],
        "latency_ms": shown[0],
        "steps": 4,
        "tokens": 9,
        "confidence": 0.6,
        "prefill_ms": 10.0,
        "model_ms": 30.0,
    }
    return Attempt(case=case, contender=contender, **{**fields, **changes})


@pytest.fixture(scope="session")
def make_attempt():
    return attempt_of


HOSTILE = (
    "</script></style><img src=x onerror=alert(1)>\"'><svg onload=alert(2)> <!-- ]]> &lt; {{ 7 * 7 }} $x$ "
    "\0\x1b[31m \u202etxet\ud800"
)
"""Text that a model may generate."""


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    browser = start_browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


def timeline_of(text):
    """`text` on the screen, in a key, in a verdict and in what is offered."""
    moments = (
        Moment(0.0, 0, "", f"Typed {text}."),
        Moment(100.0, 1, "", "Nothing.", Verdict.MISSED),
        Moment(250.0, 2, text, "Shown after 20 ms.", Verdict.USEFUL),
        Moment(400.0, 3, "", "Accepted.", Verdict.WRONG),
    )
    return Timeline(f"{text}.py", text, "abc", text, moments, num_omitted=7)


@pytest.fixture(scope="session")
def make_page(make_attempt):
    """A page with `text` wherever a file, a model or a user may have written something."""

    def make(text="plain"):
        attempts = []
        for i, name in enumerate(("diffusion", "autoregressive", text), 1):
            attempts += [
                make_attempt(f"right {text}", name, (30.0 * i, "return a")),
                make_attempt(f"wrong {text}", name, (50.0, text), kind="block", latency_ms=260.0, reference="other"),
                make_attempt(f"late {text}", name, (1800.0, "return a"), steps=70, decoder=text),
                make_attempt(f"none {text}", name, (40.0, ""), kind=text, rejection=text),
                make_attempt("tested", name, (260.0, "x"), passes=True),
            ]
        machine = Machine(text, 2, "Linux", "3.11", "0.2", "0.3", None, 2)
        options = {"decoder": text, "execute": False, "suffix_lines": [1, 2], "settings": {"a": 1.5, "gone": None}}
        header = RunHeader("infill", machine, text, "ab" * 32, {f"{text}.jsonl": "cd" * 32}, options)
        tables = [
            summary_table("All cases", {"diffusion": attempts[:5], text: attempts[10:]}),
            Table(f"Ratios {text}", ("contender", "ratio"), {text: [(text, "1.4")]}, note=text),
        ]
        run = Run(header, tuple(attempts), notes=(f"a note {text}",))
        return benchmark_page(f"bench {text}", run, tables, [timeline_of(visible(text))])

    return make


@pytest.fixture(scope="session")
def page(make_page):
    return make_page()


@pytest.fixture(scope="session")
def hostile_page(make_page):
    return make_page(HOSTILE)
