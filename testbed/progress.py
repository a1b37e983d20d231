"""Progress of long work: lines on the terminal, durations as people read them."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """One line of progress on stderr, so that stdout stays for results."""
    print(line, file=sys.stderr, flush=True)


def format_duration(seconds: float) -> str:
    """Seconds as people read them: `8 s`, `3 min 20 s`, `1 h 05 min`."""
    whole_s = round(seconds)
    if whole_s < 90:
        return f"{whole_s} s"
    if whole_s < 3600:
        return f"{whole_s // 60} min {whole_s % 60:02d} s"
    return f"{whole_s // 3600} h {whole_s % 3600 // 60:02d} min"
