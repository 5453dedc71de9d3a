"""The choice of a plan from hand-made costs and expectations."""

from dataclasses import replace

import pytest

from dg_lsp.backends.scripted import MASK_SPEC
from dg_lsp.canvas.spec import ExpectedPasses, PromptFormat
from dg_lsp.context.document import Cursor
from dg_lsp.engine.decoder_selection import DEFAULTS, DecoderSelection, PositionKind, StepCosts
from dg_lsp.engine.request import DecoderName

ON_A_CPU = StepCosts(((1, 2.0), (8, 8.0)), ((16, 11.0), (32, 21.0)))
ON_A_GPU = StepCosts(((1, 3.0), (8, 3.1)), ((16, 3.1), (32, 3.2)))
TABLE = (
    ExpectedPasses("line-end", "causal", 8.0, 0.0, 0.0, 0.3),
    ExpectedPasses("line-end", "lookup", 3.0, 2.0, 0.0, 0.3),
    ExpectedPasses("line-end", "canvas", 0.0, 0.0, 4.0, 0.3),
    ExpectedPasses("line-end", "race", 0.0, 0.0, 4.5, 0.3),
    ExpectedPasses("line-end", "draft-verify", 0.0, 3.0, 3.0, 0.3),
)
SPEC = replace(MASK_SPEC, expectations=TABLE)


@pytest.mark.parametrize(("costs", "plan"), [(ON_A_CPU, "causal"), (ON_A_GPU, "canvas")], ids=["CPU", "GPU"])
def test_what_passes_cost_decides(costs, plan):
    without_lookup = tuple(row for row in TABLE if row.plan != "lookup")
    others = ExpectedPasses("line-end", "lookup", 20.0, 0.0, 0.0, 0.3)
    planner = DecoderSelection(replace(SPEC, expectations=(*without_lookup, others)), costs)
    assert planner.choose(PositionKind.LINE_END) == plan


def test_time_is_passes_by_their_cost_for_each_hit():
    planner = DecoderSelection(SPEC, ON_A_CPU)
    assert planner.expected_ms(DecoderName.CAUSAL, PositionKind.LINE_END) == pytest.approx(8 * 2 / 0.3)
    assert planner.expected_ms(DecoderName.CANVAS, PositionKind.LINE_END) == pytest.approx(4 * 11 / 0.3)
    assert planner.expected_ms(DecoderName.RACE, PositionKind.LINE_END) == pytest.approx(4.5 * 11 / 0.3)
    check = 2 + 6 * 3 / 7  # four tokens, on the line through one and eight
    assert planner.expected_ms(DecoderName.LOOKUP, PositionKind.LINE_END) == pytest.approx((3 * 2 + 2 * check) / 0.3)


def test_being_right_more_often_is_worth_time():
    better = replace(TABLE[2], hits=0.9)
    spec = replace(SPEC, expectations=(TABLE[0], *TABLE[3:], better, replace(TABLE[1], singles=30.0)))
    assert DecoderSelection(spec, ON_A_CPU).choose(PositionKind.LINE_END) is DecoderName.CANVAS


def test_only_what_the_model_can_do_is_chosen():
    causal = replace(SPEC, sampling=None, canvas_lengths=())
    assert DecoderSelection(causal, replace(ON_A_GPU, canvas=())).choose(PositionKind.LINE_END) in (
        DecoderName.CAUSAL,
        DecoderName.LOOKUP,
    )
    canvas = replace(SPEC, has_causal_head=False)
    assert DecoderSelection(canvas, replace(ON_A_CPU, causal=())).choose(PositionKind.LINE_END) is DecoderName.CANVAS


@pytest.mark.parametrize("spec", [MASK_SPEC, replace(MASK_SPEC, sampling=None)], ids=["canvas", "causal"])
def test_without_costs_nothing_is_weighed(spec):
    assert DecoderSelection(spec, None).choose(PositionKind.BLOCK) == ("canvas" if spec.sampling else "causal")


def test_a_file_without_a_table_gets_the_defaults():
    named = {(row.kind, row.plan) for row in DEFAULTS}
    assert named == {
        (kind.value, plan.value) for kind in PositionKind for plan in DecoderName if plan is not DecoderName.AUTO
    }
    assert DecoderSelection(MASK_SPEC, ON_A_CPU).choose(PositionKind.LINE_END) in (
        DecoderName.CAUSAL,
        DecoderName.LOOKUP,
    )


@pytest.mark.parametrize(
    ("text", "max_lines", "kind"),
    [
        pytest.param("a = |", 1, PositionKind.LINE_END, id="after text"),
        pytest.param("f(|)", 1, PositionKind.LINE_END, id="inside a line"),
        pytest.param("def f():\n    |", None, PositionKind.BLOCK, id="blank, any number of lines"),
        pytest.param("def f():\n    |", 3, PositionKind.BLOCK, id="blank, several lines"),
        pytest.param("def f():\n    |", 1, PositionKind.WHOLE_LINE, id="blank, one line"),
    ],
)
def test_kinds_of_places(text, max_lines, kind):
    assert PositionKind.of(Cursor.at(text.replace("|", ""), text.index("|")), max_lines) is kind


def test_costs_between_and_beyond_what_was_measured():
    assert ON_A_CPU.extend(1) == 2.0
    assert ON_A_CPU.extend(4.5) == pytest.approx(5.0)
    assert ON_A_CPU.predict(64) == pytest.approx(41.0)
    assert ON_A_CPU.predict(1) == pytest.approx(11.0)
    assert StepCosts().extend(1) == float("inf")
    assert StepCosts(canvas=((8, 4.0),)).predict(32) == 4.0


def test_a_pinned_canvas_is_a_race_of_all_lengths():
    pinned = replace(SPEC, prompt_format=PromptFormat.PINNED, has_causal_head=False, gap_lengths=(4, 8, 16))
    planner = DecoderSelection(pinned, ON_A_CPU)
    assert planner.choose(PositionKind.LINE_END) is DecoderName.CANVAS
    one = DecoderSelection(replace(pinned, gap_lengths=(16,)), ON_A_CPU)
    three, alone = (each.expected_ms(DecoderName.CANVAS, PositionKind.LINE_END) for each in (planner, one))
    assert three == pytest.approx(4 * (11 + 10 * (3 * 16 - 16) / 16) / 0.3)
    assert alone == pytest.approx(4 * 11 / 0.3)
