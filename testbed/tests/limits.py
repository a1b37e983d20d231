"""Calls what might never return, so that a wait without a limit is a failure and not a hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def within(limit_s: float, call: Callable[[], Result]) -> Result:
    """What `call` returns or raises, from a thread that is left behind at the limit."""
    ended: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            ended.append((call(), None))
        except BaseException as error:
            ended.append((None, error))

    thread = threading.Thread(target=run, name="within", daemon=True)
    thread.start()
    thread.join(limit_s)
    assert ended, f"nothing came back within {limit_s:.0f} s"
    ((result, error),) = ended
    if error is not None:
        raise error
    done: Result = result
    return done
