"""The first requests of the campaign of HTTP clients."""

import math

import pytest

from soak import web


@pytest.mark.timeout(900)
def test_hostile_clients_neither_stop_the_server_nor_change_the_answers_of_others():
    figures = web.run(seconds=math.inf, seed=0, most=500)
    assert figures["crashes"] == figures["lost"] == figures["crossed"] == figures["unexpected"] == 0, figures
    assert figures["files_left_open"] == figures["requests_left_active"] == 0, figures
    assert figures["messages"] >= 500
    assert figures["compared"] >= 200
    assert {200, 400, 408, 413} <= set(figures["statuses"])
