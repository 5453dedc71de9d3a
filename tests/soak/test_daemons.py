"""The first answers of the campaign of the shared daemon."""

from soak import daemons


def test_no_answer_is_lost_or_crossed_while_daemons_and_clients_fail():
    figures = daemons.run(seconds=240, seed=0, most=80)
    assert not any(figures[kind] for kind in daemons.FAILURES), figures
    assert figures["messages"] >= 80
    assert figures["compared"] >= 20
    assert len(figures["faults"]) == 7
