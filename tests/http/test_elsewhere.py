"""`input_extra`: code from elsewhere that clients send along."""

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser

GAP = {"input_prefix": "x = ", "input_suffix": "\n"}
EXTRA = [
    {"text": "old = 1\r\n", "filename": "/home/me/work/pkg/sub/old.py"},
    {"text": "\tnew = 2\n", "filename": ""},
]


@pytest.fixture
def seen():
    return []


@pytest.fixture
def ask(start, seen):
    def call(extra, **context):
        def fill(prefix, _suffix):
            seen.append(prefix)
            return "1"

        client = start(ScriptedDenoiser(fill), context={"when": "always", **context})
        assert client.post("/infill", {**GAP, "input_extra": extra}).tree["content"] == "1"
        return seen[-1]

    return call


def test_the_newest_stands_last_under_short_paths(ask):
    assert ask(EXTRA) == "# pkg/sub/old.py\nold = 1\n# snippet\n    new = 2\n# untitled\nx = "


def test_a_model_that_learned_one_file_at_a_time_sees_none_by_default(ask):
    assert ask(EXTRA, when="auto") == "x = "
    assert ask(EXTRA, when="never") == "x = "


def test_where_there_is_not_room_for_all_the_newest_stays(ask):
    long = [{"text": f"value_{number} = {number}\n" * 12, "filename": f"{number}.py"} for number in range(40)]
    shown = ask(long)
    assert "value_39" in shown
    assert "value_0 " not in shown


@pytest.mark.parametrize("name", ["/home/me/.ssh/deep/down/in/it.py", "a\\.env", ".env", "x/service-account-1.json"])
def test_an_excluded_file_is_not_shown_whoever_sends_it(ask, name):
    assert ask([{"text": "key = 'hunter2'\n", "filename": name}]) == "x = "


@pytest.mark.parametrize("name", ["//[", "a\nb.py", "caf\u00e9 \ud83d\ude00.py", "\ud800.py", "?#%zz.py", "/"])
def test_any_name_will_do(ask, name):
    shown = ask([{"text": "a = 1\n", "filename": name}])
    assert shown.count("\n") == 3
    assert "\na = 1\n# untitled\nx = " in shown


def test_an_empty_chunk_is_harmless(ask):
    assert ask([{"text": ""}]).endswith("x = ")


def test_more_chunks_than_anybody_has_are_refused(module_client):
    reply = module_client.post("/infill", {**GAP, "input_extra": [{"text": "a"}] * 4097})
    assert (reply.status, reply.error["param"]) == (400, "input_extra")
    assert "at most 4096" in reply.error["message"]
    assert module_client.post("/infill", {**GAP, "input_extra": [{"text": "a"}] * 4096}).status == 200
