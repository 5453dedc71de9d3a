"""The first keys of the campaign of editors."""

import math

import pytest

from soak import editors


@pytest.mark.timeout(1200)
def test_the_text_of_both_editors_is_what_was_typed_and_accepted():
    figures = editors.run(seconds=math.inf, seed=0, most=80)
    assert not any(figures[kind] for kind in editors.FAILURES), figures
    typed = [figures[kind.name] for kind in (editors.Neovim, editors.VSCode) if "skipped" not in figures[kind.name]]
    if not typed:
        pytest.skip(f"no editor: {figures}")
    for one in typed:
        assert one["keys"] >= 80
        assert min(one["answers"], *one["server_mib"], *one["editor_mib"]) > 0, figures
    assert sum(one["accepted"] for one in typed) > 0, figures
