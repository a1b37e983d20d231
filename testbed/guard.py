"""What every task shares: errors become one line, signals unwind, the exit status is honest."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from testbed.errors import TestbedError

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RAISE_AGAIN_S = 0.02


class Interrupted(BaseException):
    """A signal told us to end.  Unwinds through every context manager, like KeyboardInterrupt."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status that shells use for a program ended by this signal."""
        return 128 + self.number


def watch_signals() -> None:
    """Turn SIGINT, SIGTERM and SIGHUP into `Interrupted`, so that what was started is ended.

    A signal that the caller has us ignore (nohup, a background job) stays ignored.  `./inv` starts
    us with the signals blocked, so that none arrives before this.
    """
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _unwind)
    sys.unraisablehook = _not_lost
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)


def stop_watching() -> None:
    """From here on signals change nothing: the process is about to end.

    A handler of ours would not do: the interpreter takes it away while it shuts down.
    """
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def guarded(task: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a task body: `error: what - remedy` on stderr and status 1 instead of a traceback.

    `./inv --debug TASK` (or `WORMHOLE_DEBUG=1`) shows the traceback. Ctrl-C gives status 130,
    SIGTERM 143, SIGHUP 129, each after everything that was started has been ended.
    """

    @functools.wraps(task)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return task(*args, **kwargs)
        except TestbedError as error:
            _say(str(error))
            raise SystemExit(1) from None
        except Interrupted as interrupt:
            _say(
                f"ended by {signal.Signals(interrupt.number).name}"
                " - whatever was started has been ended; run the same command again"
            )
            raise SystemExit(interrupt.status) from None
        except BrokenPipeError:
            # Whoever read our output has enough; the interpreter must not try to flush the rest.
            stop_watching()
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(128 + signal.SIGPIPE) from None
        except OSError as error:
            # Anything that reaches this point without a remedy of its own is still one line.
            what = f"{error.filename}: " if error.filename else ""
            _say(f"{what}{error.strerror or error} - see ./inv doctor, or use --debug for details")
            raise SystemExit(1) from None
        except Exception as error:
            _say(
                f"a fault of the testbed itself: {type(error).__name__}: {error}"
                " - run it with ./inv --debug and report what it prints"
            )
            raise SystemExit(70) from None

    return run


def _unwind(number: int, _frame: FrameType | None) -> None:
    """Raise, unless an earlier signal is unwinding: its clean-up must run to its end."""
    if not _is_unwinding():
        raise Interrupted(number)


def _is_unwinding() -> bool:
    """Whether an `Interrupted` is in flight: handled now, or the context of what is handled."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, Interrupted):
            return True
        error = error.__context__
    return False


def _not_lost(unraisable: Any) -> None:
    """An interrupt raised inside a destructor cannot leave it: send the signal again."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)
        return
    number = unraisable.exc_value.number
    again = threading.Timer(RAISE_AGAIN_S, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def _say(line: str) -> None:
    """The one line, after which the task ends: a signal has nothing left to end."""
    stop_watching()
    if os.environ.get("WORMHOLE_DEBUG") == "1":
        traceback.print_exc()
    print(f"error: {line}", file=sys.stderr)
