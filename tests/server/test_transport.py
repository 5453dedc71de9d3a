"""Headers of LSP: which messages are read, and what closes the connection."""

import asyncio

import pytest

from dg_lsp.server.transport import read_messages


def read(sent):
    """The bodies that are read, and the problems that are reported."""

    async def bodies():
        reader, problems = asyncio.StreamReader(), []
        reader.feed_data(sent)
        reader.feed_eof()
        return [body async for body in read_messages(reader, problems.append)], problems

    return asyncio.run(bodies())


def test_headers_may_have_any_case_and_a_content_type():
    header = b"content-length:5 \r\nContent-Type: application/json\r\n\r\n"
    assert read(header + b"{{{{{" + b"Content-Length: 0\r\n\r\n" + b"Content-Length: 2\r\n\r\n[]Content-") == (
        [b"{{{{{", b"[]"],
        [],
    )


@pytest.mark.parametrize(
    "sent",
    [
        b"POST / HTTP/1.1\r\n",
        b"Content-Length: 2\r\nX-Header: 1\r\n",
        b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        b"Content-Length: 1000000000000\r\n\r\n",
        b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"Content-Length: 0\r\n\r\n{}\r\nContent-Length: 2\r\n\r\n{}",
        b"\r\n",
        b"Content-Type: " + b"x" * 100_000,
        b"Content-Type: x\r\n" * 20,
    ],
    ids=["http", "other", "two lengths", "huge", "no number", "too short", "no length", "long line", "many lines"],
)
def test_a_header_that_is_not_one_of_lsp_ends_the_messages(sent):
    bodies, [problem] = read(sent)
    assert bodies == []
    assert problem.startswith("the connection is closed: ")
