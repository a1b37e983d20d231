"""What ./inv starts: signals are watched before anything else is even imported."""

from __future__ import annotations

from testbed.guard import guarded, stop_watching, watch_signals


@guarded
def _run() -> None:
    from testbed.cli import main

    main()


if __name__ == "__main__":
    watch_signals()
    try:
        _run()
    finally:
        stop_watching()
