"""The first answers of the campaign of the shared daemon."""

import math

import pytest

from soak import daemons


@pytest.mark.timeout(900)
def test_no_answer_is_lost_or_crossed_while_daemons_and_clients_fail():
    figures = daemons.run(seconds=math.inf, seed=0, most=60)
    assert not any(figures[kind] for kind in daemons.FAILURES), figures
    assert figures["messages"] >= 60
    assert figures["compared"] >= 10
    assert len(figures["faults"]) == 7
