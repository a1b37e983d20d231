"""What every task shares: errors become one line, signals unwind, the exit status is honest."""

from __future__ import annotations

import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from testbed.errors import TestbedError


def _unwind(signal_number: int, _frame: FrameType | None) -> NoReturn:
    """Turn a signal into an exception, so that context managers end what they started."""
    raise SystemExit(128 + signal_number)


def guarded(task: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a task body: `error: what - remedy` on stderr and status 1 instead of a traceback.

    `./inv --debug TASK` (or `WORMHOLE_DEBUG=1`) shows the traceback. Ctrl-C gives status 130,
    SIGTERM 143, SIGHUP 129, each after everything that was started has been ended.
    """

    @functools.wraps(task)
    def run(*args: Any, **kwargs: Any) -> Any:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _unwind)
        try:
            return task(*args, **kwargs)
        except TestbedError as error:
            _say(str(error))
            raise SystemExit(1) from None
        except KeyboardInterrupt:
            _say("interrupted")
            raise SystemExit(130) from None
        except OSError as error:
            # Anything that reaches this point without a remedy of its own is still one line.
            _say(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))
            raise SystemExit(1) from None

    return run


def _say(line: str) -> None:
    if os.environ.get("WORMHOLE_DEBUG") == "1":
        traceback.print_exc()
    print(f"error: {line}", file=sys.stderr)
