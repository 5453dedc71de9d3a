import json
import math
import re
from pathlib import Path

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.bench.infill import Asking, Length, fill_site, summary_object
from dg_lsp.bench.sites import Site, read_sites
from dg_lsp.bench.summaries import by_kind, summary_table
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.engine.engine import Engine
from dg_lsp.metrics.summary import summarize
from dg_lsp.settings import FillSettings

SITES = {site.id: site for site in read_sites(Path(__file__).parent / "problems.jsonl")}
LINE_END, BLOCK, SPAN = (SITES[f"hand/{name}"] for name in ("line-end", "block", "span"))


def engine(fill, **more):
    denoiser = ScriptedDenoiser(fill, **more)
    return Engine(denoiser, denoiser.tokenizer, FillSettings(max_tokens=500))  # a token is a byte here


def test_an_exact_fill():
    attempt = fill_site(engine("width * height"), LINE_END, Asking(), "auto")
    assert (attempt.site, attempt.kind, attempt.way) == ("hand/line-end", "line-end", "auto")
    assert attempt.decoder == "diffusion"
    assert [item.text for item in attempt.shown] == ["width * height"]
    assert attempt.is_exact
    assert attempt.ttfue_ms == attempt.latency_ms == attempt.shown[0].ms
    assert 0 < attempt.prefill_ms <= attempt.model_ms <= attempt.latency_ms
    assert attempt.steps == 4
    assert attempt.tokens == len("width * height") + 1
    assert attempt.confidence < 0
    assert attempt.passes is None
    assert attempt.rejection is None


def test_a_wrong_fill_is_a_miss_and_costs_the_same():
    attempt = fill_site(engine("width"), LINE_END, Asking(), "auto")
    assert attempt.text == "width"
    assert not attempt.is_exact
    assert attempt.ttfue_ms is None
    assert attempt.latency_ms > 0


def test_nothing_worth_showing_keeps_its_reason():
    attempt = fill_site(engine("    "), LINE_END, Asking(), "auto")
    assert attempt.shown == ()
    assert attempt.rejection == "empty"
    assert math.isnan(attempt.confidence)
    assert attempt.ttfue_ms is None


@pytest.mark.parametrize("site", SITES.values(), ids=SITES)
def test_the_reference_comes_through_the_product_where_it_may_have_its_lines(site):
    attempt = fill_site(engine(site.want, tokens_per_step=64), site, Asking(Length.ORACLE), "auto")
    assert attempt.is_exact
    assert attempt.is_useful


@pytest.mark.parametrize(
    ("asking", "lines"),
    [
        pytest.param(Asking(), 1, id="the place decides"),
        pytest.param(Asking(Length.ORACLE), 2, id="as many as the reference"),
        pytest.param(Asking(Length.GIVEN, 1), 1, id="at most one"),
        pytest.param(Asking(Length.GIVEN, 9), 2, id="at most nine"),
    ],
)
def test_what_a_fill_is_told_of_its_length(asking, lines):
    attempt = fill_site(engine(SPAN.want, tokens_per_step=64), SPAN, asking, "auto")
    assert attempt.text.count("\n") + 1 == lines
    assert attempt.is_exact is (lines == 2)
    assert attempt.is_useful


def test_a_block_needs_no_telling():
    assert fill_site(engine(BLOCK.want, tokens_per_step=64), BLOCK, Asking(), "auto").is_exact


def test_what_follows_can_be_hidden():
    seen = []

    def fill(prefix, suffix):
        seen.append(suffix)
        return "x"

    for suffix_lines in (None, 0):
        fill_site(engine(fill), BLOCK, Asking(suffix_lines=suffix_lines), "auto")
    assert "return found" in seen[0]
    assert "return found" not in seen[-1]


def test_the_plan_asked_for_is_the_one_that_runs():
    assert fill_site(engine("x"), LINE_END, Asking(decoder=DecoderName.DIFFUSION), "diffusion").decoder == "diffusion"


def test_a_deadline_takes_what_is_there():
    slow = engine("width * height", tokens_per_step=1, step_seconds=0.02)
    attempt = fill_site(slow, LINE_END, Asking(deadline_ms=1), "auto")
    assert not attempt.is_exact
    assert attempt.steps <= 1
    assert fill_site(slow, LINE_END, Asking(), "auto").is_exact


def test_a_warm_site_finds_its_text_in_the_cache():
    nums = []
    for is_warm in (False, True):
        denoiser = ScriptedDenoiser("width * height")
        prefill, decoded = denoiser.prefill, []
        denoiser.prefill = lambda slot, ids, prefill=prefill, decoded=decoded: (
            decoded.append(prefill(slot, ids)) or decoded[-1]
        )
        one = Engine(denoiser, denoiser.tokenizer, FillSettings(canvas_length=16))
        assert fill_site(one, LINE_END, Asking(is_warm=is_warm), "auto").is_exact
        nums.append(decoded[-1])
    assert nums[1] < 10 < nums[0]


def test_json_has_exactly_the_promised_keys():
    attempt = fill_site(engine("width * height"), LINE_END, Asking(), "auto")
    tree = summary_object(summarize([attempt]), "dg-mini", Length.NONE)
    assert list(tree) == [
        *("num", "exact_match", "first_line_match", "pass_at_1", "ttfue_ms", "useful_by", "miss_rate", "latency_ms"),
        *("steps_mean", "tokens_per_forward", "model", "length_knowledge"),
    ]
    page = (Path(__file__).parents[2] / "docs/benchmarks.md").read_text(encoding="utf-8")
    documented, *_ = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert list(json.loads(documented)) == list(tree)
    assert (tree["num"], tree["exact_match"], tree["pass_at_1"]) == (1, 1.0, None)
    assert (tree["model"], tree["length_knowledge"]) == ("dg-mini", "none")


def test_a_table_has_a_row_for_every_kind_and_one_for_all():
    attempts = [fill_site(engine(site.want), site, Asking(), "auto") for site in SITES.values()]
    summaries = by_kind(attempts)
    assert list(summaries) == ["line-end", "whole-line", "block", "span", "all"]
    assert summaries["all"].num == 5
    rows = list(summary_table(summaries, "kind"))
    assert len({row.count("|") for row in rows}) == 1
    assert [row.split(" | ")[0] for row in rows[2:]] == [f"| {kind}" for kind in summaries]
    assert list(by_kind([attempt for attempt in attempts if attempt.kind == "span"])) == ["span"]
    assert "all" in by_kind([])


def test_sites_without_a_path_have_a_name_of_their_own():
    assert LINE_END.snapshot.uri != BLOCK.snapshot.uri
    assert Site("a", "span", "", "", "x", path="pkg/a.py").snapshot.uri == "file:///pkg/a.py"
