"""Vim itself reads responses by llama.vim's rules: two patterns, then its own JSON parser."""

import json
import shutil
import subprocess

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser

pytestmark = pytest.mark.skipif(
    not (shutil.which("vim") and shutil.which("curl")), reason="install vim and curl to send requests as llama.vim does"
)

DRIVE = r"""
set encoding=utf-8
let body = system('curl --silent --no-buffer --request POST --url ' . $URL
  \ . '/infill --header "Content-Type: application/json" --header "Authorization: Bearer " --data @request.json')
let is_accepted = body =~# '\v"content"\s*:"' && len(split(body, "\n", 1)) == 1
let answer = json_decode(body)
call writefile([json_encode([is_accepted, get(answer, 'content', v:null), has_key(answer, 'error')])], 'seen.json')
qa!
"""


@pytest.mark.parametrize(
    ("fill", "request_", "seen"),
    [
        ('    b = "é😋"\n    return [a, b]', {"response_fields": ["content", "timings/prompt_n"]}, [1, True, 0]),
        ("x", {"n_cmpl": 99}, [0, False, 1]),
    ],
    ids=["several lines", "error"],
)
def test_vim_reads_a_fill_and_does_not_accept_an_error(start, tmp_path, fill, request_, seen):
    """Seen: whether llama.vim accepts the response, whether it has the fill, and whether it is an error."""
    client = start(ScriptedDenoiser(fill))
    (tmp_path / "drive.vim").write_text(DRIVE)
    (tmp_path / "request.json").write_text(
        json.dumps({"input_prefix": "def f(a):\n", "input_suffix": "\n", **request_})
    )
    command = ["vim", "-N", "-u", "NONE", "-i", "NONE", "-es", "-S", "drive.vim"]
    environment = {"URL": f"http://127.0.0.1:{client.port}", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    subprocess.run(command, cwd=tmp_path, env=environment, timeout=120, check=False, stdin=subprocess.DEVNULL)
    is_accepted, text, is_error = json.loads((tmp_path / "seen.json").read_text())
    assert [is_accepted, text == fill, is_error] == seen
