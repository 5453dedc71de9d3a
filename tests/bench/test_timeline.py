import json

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.bench.replay import EngineCompleter, Replay
from dg_lsp.bench.timeline import MAX_MOMENTS, timelines
from dg_lsp.bench.typing_model import EditorModel, TypingModel, TypingTask
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.ttfue import Verdict
from dg_lsp.settings import CompletionSettings


def timeline_of(text, **fills):
    """One task, filled as `at` of a line with just that text (`_` is a space), by a model that takes no time."""
    by_line = {before.replace("_", " "): fill for before, fill in fills.items()}
    denoiser = ScriptedDenoiser(lambda prefix, _: by_line.get(prefix.split("\n")[-1], ""))
    settings = CompletionSettings(check_syntax=False, deadline_ms=60_000, decoder="diffusion")
    completer = EngineCompleter(LocalEngine(denoiser, denoiser.tokenizer, settings), clock=lambda: 0.0)
    replay = Replay([TypingTask("a.py", "python", "", text, "")], TypingModel(spread=0), EditorModel())
    [timeline] = timelines(replay.run(completer))
    return timeline


def screens(timeline):
    """What is typed and what is offered at each moment."""
    return [
        (timeline.text.encode("utf-16-le")[: 2 * one.typed].decode("utf-16-le"), one.ghost) for one in timeline.moments
    ]


def test_the_screen_has_the_typed_text_and_the_item_that_is_on_offer():
    timeline = timeline_of("a = one\n", a_="= one")
    seen = screens(timeline)
    assert ("a ", "= one") in seen
    assert seen[-1] == ("a = one\n", "")
    assert timeline.moments[-1].at_ms >= timeline.moments[0].at_ms


@pytest.mark.parametrize(
    ("fill", "verdict"),
    [
        ("= one more", Verdict.USEFUL),
        ("= one or more", Verdict.PARTLY),
        ("is two", Verdict.WRONG),
        ("", Verdict.MISSED),
    ],
)
def test_each_request_has_a_verdict(fill, verdict):
    timeline = timeline_of("a = one more", a_=fill)
    assert verdict in timeline.counts
    assert sum(timeline.counts.values()) == sum(num for _, _, num, _ in timeline.legend())


def test_silence_at_the_end_of_a_finished_line_is_right():
    timeline = timeline_of("ab\ncd\n")
    assert timeline.counts[Verdict.QUIET] > 0
    assert "rightly quiet" in timeline.summary


def test_text_outside_the_basic_plane_and_invisible_text_keep_their_places():
    timeline = timeline_of('a = "🙂\u202e"\n')
    assert screens(timeline)[-1][0] == timeline.text
    assert "\u202e" not in json.dumps(timeline.data, ensure_ascii=False)


def test_a_very_long_replay_is_cut_and_reported(monkeypatch):
    monkeypatch.setattr("dg_lsp.bench.timeline.MAX_MOMENTS", 5)
    timeline = timeline_of("abcdefgh")
    assert (len(timeline.moments), timeline.num_omitted > 0, MAX_MOMENTS > 5) == (5, True, True)
