"""Waiting for an answer only as long as somebody waits for it."""

import asyncio
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

Result = TypeVar("Result")


async def unless_gone(work: "asyncio.Future[Result]", request: Request) -> "asyncio.Future[Result]":
    """`work` once it is done, however it ended; a client that leaves first has it cancelled.

    The request's body has to be read before.

    Raises:
        ClientDisconnect: the client left.
    """
    leaving = asyncio.create_task(_until_gone(request))
    both: set[asyncio.Future[Any]] = {work, leaving}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        has_left = not work.done()
        work.cancel()
        leaving.cancel()
    if has_left:
        raise ClientDisconnect
    return work


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
