"""What ./inv starts: signals are watched before anything else is even imported."""

from __future__ import annotations

from testbed.guard import guarded, stop_watching, watch_signals
from testbed.watched import run_watched


@guarded
def _work() -> None:
    watch_signals()
    from testbed.cli import main

    main()


def _watched_work() -> None:
    try:
        _work()
    finally:
        stop_watching()


if __name__ == "__main__":
    run_watched(_watched_work)
