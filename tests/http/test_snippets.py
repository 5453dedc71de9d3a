"""Code of other files in a request, as `input_extra`, and earlier texts of the file itself."""

import pytest
from http_server import OPERATOR, mercury
from scripted import ScriptedDenoiser

from dg_lsp.context.window import MAX_CHARS
from dg_lsp.http import service
from dg_lsp.http.service import EarlierText

GAP = {"input_prefix": "x = ", "input_suffix": "\n"}
EXTRA = [{"text": "old = 1\r\n", "filename": "/home/me/work/pkg/sub/old.py"}, {"text": "\tnew = 2\n", "filename": ""}]


@pytest.fixture
def prefix_of(start):
    """The prefix that the model is given."""
    prefixes = []

    def call(extra, **context):
        def fill(prefix, _suffix):
            prefixes.append(prefix)
            return "1"

        client = start(ScriptedDenoiser(fill), context={"enabled": "always", **context})
        assert client.post("/infill", {**GAP, "language": "python", "input_extra": extra}).tree["content"] == "1"
        return prefixes[-1]

    return call


def test_the_newest_snippet_is_last_and_paths_are_short(prefix_of):
    assert prefix_of(EXTRA) == "# pkg/sub/old.py\nold = 1\n# snippet\n    new = 2\n# untitled\nx = "
    assert prefix_of(EXTRA, enabled="auto") == "x = ", "the model was trained on single files"
    assert prefix_of(EXTRA, enabled="never") == "x = "


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "usually contain secrets") for name in ("a\\.env", "/home/me/.ssh/config.py", "prod.env")),
        ("C:\\me\\private\\a.py", "a pattern of the settings"),
    ],
)
def test_an_excluded_file_is_not_completed(start, name, reason):
    def fill(prefix, suffix):
        raise AssertionError(prefix + suffix)

    client = start(ScriptedDenoiser(fill), privacy={"exclude_patterns": ["private/"], "exclude_languages": ["lua"]})
    edit = {"messages": [{"role": "user", "content": mercury(name, "a = <|cursor|>")}]}
    tabby = {"segments": {"prefix": "a = ", "filepath": name}}
    for path, body in (("/v1/completions", tabby), ("/v1/edit/completions", edit)):
        reply = client.post(path, body)
        assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
        assert reason in reply.error["message"]
    assert "its language is excluded" in client.post("/infill", {**GAP, "language": "lua"}).error["message"]


def test_a_request_without_a_file_and_a_language_is_completed_whatever_languages_are_excluded(start):
    client = start(ScriptedDenoiser("1"), privacy={"exclude_languages": ["plaintext"]})
    assert client.post("/infill", GAP).tree["content"] == "1"


def test_a_file_of_the_clients_machine_is_not_looked_up_on_the_servers(prefix_of, tmp_path):
    (tmp_path / "a.py").symlink_to(tmp_path / ".env")
    assert "x = 1" in prefix_of([{"text": "x = 1\n", "filename": str(tmp_path / "a.py")}])


def test_secrets_are_masked_also_where_the_text_is_cut(prefix_of, monkeypatch):
    extra = [{"text": "key = 'ghp_" + "a1" * 18 + "'\n", "filename": "a.py"}]
    assert "key = '***'\n" in prefix_of(extra)
    monkeypatch.setattr(service, "MAX_CHARS", 30)
    shown = prefix_of(extra)
    assert "key = '" in shown
    assert "ghp_" not in shown


@pytest.mark.parametrize("name", ["//[", "a\nb.py", "caf\u00e9 \ud83d\ude00.py", "\ud800.py", "?#%zz.py", "/"])
def test_any_file_name_is_accepted(prefix_of, name):
    shown = prefix_of([{"text": "a = 1\n", "filename": name}])
    assert shown.count("\n") == 3
    assert "\na = 1\n# untitled\nx = " in shown


FILE = [f"value_{number} = compute({number})\n" for number in range(99)]


@pytest.mark.parametrize(
    ("client", "sent", "joined"),
    [
        pytest.param("alice", FILE[20:55], FILE[:55], id="a line above the last one"),
        pytest.param("alice", FILE[70:], FILE[70:], id="lines that follow none"),
        pytest.param("alice", FILE[20:25], FILE[20:25], id="too few to recognise"),
        pytest.param("bob", FILE[20:70], FILE[20:70], id="another client"),
    ],
)
def test_a_part_of_a_file_is_joined_with_what_earlier_requests_of_the_client_had_before_it(client, sent, joined):
    earlier = EarlierText()
    for part in (FILE[:60], ["another file\n" * 99], FILE[10:65]):
        earlier.joined("alice", "".join(part))
    assert earlier.joined(client, "".join(sent)) == "".join(joined)


def test_no_request_becomes_longer_than_a_text_that_is_searched():
    earlier, line = EarlierText(), "x" * 999 + "\n"
    earlier.joined("alice", f"{line * (MAX_CHARS // 1000)}{''.join(FILE)}")
    assert earlier.joined("alice", "".join(FILE)) == "".join(FILE)


@pytest.mark.parametrize(
    ("path", "names"),
    [("/infill", ("input_prefix", "input_suffix")), ("/v1/completions", ("prompt", "suffix"))],
)
def test_a_client_that_sends_parts_of_a_file_has_the_same_prompts_as_one_that_sends_all_of_it(start, path, names):
    class Recorded(ScriptedDenoiser):
        """Records the prefix of each prompt that a canvas follows; idle time decodes others."""

        def predict(self, slot, *options):
            seen.append(self._parts(self._slots[slot][0])[0])
            return super().predict(slot, *options)

    def prefixes(first_lines):
        seen.clear()
        client = start(Recorded("1"), rules=OPERATOR)
        for number, first in enumerate(first_lines):
            sent = dict(zip(names, ("".join(FILE[first : number + 90]), ")\n"), strict=True))
            assert client.post(path, {**sent, "language": "python"}).status == 200
        return [*seen]

    seen = []
    assert prefixes(range(9)) == prefixes([0] * 9)
