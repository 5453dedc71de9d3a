import re

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.bench.report.film import films, legend
from dg_lsp.bench.report.films import choose_sites, record_films, verdict
from dg_lsp.bench.sites import Site
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import Cell, Frame
from dg_lsp.metrics.attempt import Shown
from dg_lsp.settings import FillSettings


def site_of(name, want="a + b"):
    return Site(name, "line-end", "first\nsecond\n\n\n\n\nx = ", "\nlast\n" + "z\n" * 50, want)


def test_a_film_is_every_step_of_a_fill():
    denoiser = ScriptedDenoiser("a + b", tokens_per_step=2)
    engine = Engine(denoiser, denoiser.tokenizer, FillSettings())
    [film] = record_films(engine, [site_of("s")])
    assert film.site == "s"
    assert [frame.step for frame in film.frames] == [1, 2, 3]
    assert (film.text, film.decoder, film.why) == ("a + b", "diffusion", "exact")
    assert film.before.endswith("\n\nx = ")
    assert film.before.count("\n") == 3
    assert film.after == "\nlast\nz\nz"


def test_a_film_is_asked_for_as_the_benchmark_asks():
    asked = []

    def request(site):
        asked.append(site.id)
        return FillRequest(site.snapshot, site.offset, suffix_lines=0)

    denoiser = ScriptedDenoiser("c", tokens_per_step=1)
    made = record_films(Engine(denoiser, denoiser.tokenizer, FillSettings()), [site_of("s"), site_of("t")], request)
    assert asked == [film.site for film in made] == ["s", "t"]
    assert {film.why for film in made} == {"wrong"}


@pytest.mark.parametrize(
    ("setting", "asked", "ran"),
    [
        pytest.param("auto", None, DecoderName.DIFFUSION, id="there is more to see on a canvas"),
        pytest.param("auto", DecoderName.AUTOREGRESSIVE, DecoderName.AUTOREGRESSIVE, id="asked for"),
        pytest.param("autoregressive", None, DecoderName.AUTOREGRESSIVE, id="set"),
    ],
)
def test_a_film_is_of_a_canvas_where_the_planner_may_choose(setting, asked, ran):
    denoiser = ScriptedDenoiser("abc", tokens_per_step=1)
    engine = Engine(denoiser, denoiser.tokenizer, FillSettings(decoder=setting))
    site = site_of("s", "abc")
    [film] = record_films(engine, [site], lambda site: FillRequest(site.snapshot, site.offset, decoder=asked))
    assert (film.decoder, film.text) == (ran, "abc")
    rows = [cells(films([film]), i + 1) for i in range(len(film.frames))]
    assert all(row[0][1] == "a" for row in rows)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "nothing shown"), ("a\nb  \n", "exact"), ("a\nc", "first line right"), ("c", "wrong")],
)
def test_what_a_film_is_an_example_of(text, said):
    assert verdict(text, "a\nb") == said


def test_one_site_of_each_sort_is_chosen_and_none_twice(make_attempt):
    attempts = [
        make_attempt("unknown", want="return a"),
        make_attempt("several lines"),
        make_attempt("first", want="return a"),
        make_attempt("second", want="return a"),
        make_attempt("begins well", is_exact=False),
        make_attempt("wrong", shown=(Shown(1, "no"),), is_exact=False),
        make_attempt("nothing", shown=(), is_exact=False),
        make_attempt("nothing again", shown=(), is_exact=False),
    ]
    sites = [site_of(attempt.site) for attempt in attempts[1:]]
    assert [site.id for site in choose_sites(sites, attempts)] == [
        "first",
        "several lines",
        "begins well",
        "wrong",
        "nothing",
    ]
    assert choose_sites(sites, []) == ()


def cells(html, step):
    """Class and text of a row of the table of steps by positions."""
    row = re.search(rf'<tr data-step="{step}">(.*?)</tr>', html, re.DOTALL)[1]
    return re.findall(r'<td class="([^"]*)" title="[^"]*">(.*?)</td>', row)


def test_a_row_shows_what_is_accepted_what_is_new_and_how_sure_it_was(make_film):
    html = films([make_film()])
    assert cells(html, 1) == [
        ("c4 k n", "self"),
        ("c4 k n", ".height"),
        ("c1", " ="),
        ("c1", " height"),
        ("c1", "∎"),
        ("c0", "·"),
    ]
    assert cells(html, 2)[:4] == [("c4 k", "self"), ("c4 k", ".height"), ("c4 k n", " ="), ("c4 k n", " height")]


def test_rows_of_a_text_that_only_grows_are_as_wide_as_the_last_one(make_film, make_frame):
    frames = (make_frame(1, ("a",), 1), make_frame(2, ("a", "b"), 2), make_frame(3, ("a", "b", "c"), 3))
    html = films([make_film(frames=frames)])
    assert cells(html, 2) == [("c4 k", "a"), ("c4 k n", "b")]
    assert [row.count("<td") for row in html.split("<tr data-step")[1:]] == [3, 3, 3]


def test_blanks_and_line_ends_are_seen_and_long_tokens_cut(make_film):
    html = films([make_film(tokens=("\n", " ", "    ", "\tx", "y" * 40, "<b>"))])
    assert [text for _, text in cells(html, 3)] == ["↵", "␣", "␣4", "⇥x", "y" * 18 + "…", "&lt;b&gt;"]


def test_the_code_of_a_step_ends_at_the_end_token_and_stands_in_its_place(make_film):
    html = films([make_film()])
    codes = re.findall(r'<pre class="code"[^>]*><code>(.*?)</code>', html, re.DOTALL)
    texts = [re.sub("<[^>]+>", "", code) for code in codes]
    assert texts[0] == "def f():\n    self.height = height\n\nnext()"
    assert texts[2] == "def f():\n    self.height = height\n\nnext()"
    assert [("hidden" in tag) for tag in re.findall(r'<pre class="code"([^>]*)>', html)] == [True, True, False]
    assert 'data-said="Step 1 of 3: 2 of 6 positions accepted"' in html


def test_a_second_canvas_goes_on_where_the_first_ended(make_film, make_frame):
    frames = (
        make_frame(1, ("a", "b"), 2),
        Frame(1, 2, (Cell("c", 0.99, True, False), Cell("", 0.3, False, True)), "abc"),
    )
    html = films([make_film(frames=frames)])
    assert cells(html, 2) == [("c5 k n", "c"), ("c1", "∎")], "nothing of the first canvas counts in the second"
    last = re.findall(r'<pre class="code"[^>]*><code>(.*?)</code>', html, re.DOTALL)[-1]
    assert re.sub("<[^>]+>", "", last) == "def f():\n    abc\n\nnext()"
    assert html.count("<tbody>") == 2


def test_the_legend_names_every_colour():
    html = legend()
    assert [int(number) for number in re.findall(r'class="c(\d)" aria-hidden', html)] == [0, 1, 2, 3, 4, 5]
    assert "99–100 %" in html


def test_the_bundled_models_film_has_tokens_of_text():
    from dg_lsp.cli import loading
    from dg_lsp.settings import RuntimeSettings, Settings

    engine = loading.open_engine(Settings(runtime=RuntimeSettings(threads=1, gpu_layers=0)))
    try:
        site = Site("s", "line-end", "def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n", "a + b")
        [film] = record_films(engine, [site])
    finally:
        engine.close()
    assert film.frames[-1].cells[0].is_committed
    assert film.text.strip()
    assert film.text.strip().split()[0] in films([film])
