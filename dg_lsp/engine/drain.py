"""A generator asked for everything; what it returns in the end."""

from collections.abc import Callable, Generator
from typing import TypeVar

Value = TypeVar("Value")
Result = TypeVar("Result")


def drain(values: Generator[Value, None, Result], look: Callable[[Value], object] = lambda _: None) -> Result:
    """Asks for every value, has each looked at, and gives back the generator's result."""
    while True:
        try:
            value = next(values)
        except StopIteration as end:
            result: Result = end.value
            return result
        look(value)
