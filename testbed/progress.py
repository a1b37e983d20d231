"""Progress of long work: what runs now, how long it took so far, and an estimate of the rest."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stages:
    """A fixed list of stages with expected durations, reported as `[k/n] name (about 3 min left)`.

    Estimates are the caller's guesses; each finished stage scales those that follow by the speed
    seen so far, so that the remaining time is honest on slow machines.
    """

    def __init__(self, expected_s: dict[str, float]) -> None:
        self._expected_s = dict(expected_s)
        self._done_expected_s = 0.0
        self._done_real_s = 0.0
        self._index = 0

    @contextmanager
    def stage(self, name: str, cached: bool = False) -> Iterator[None]:
        """Run one stage; `cached` says that its result exists, so that its estimate is dropped."""
        expected_s = self._expected_s.pop(name, 0.0)
        self._index += 1
        if cached:
            expected_s = 0.0
        remaining_s = (expected_s + sum(self._expected_s.values())) * self._pace()
        total = self._index + len(self._expected_s)
        say(f"[{self._index}/{total}] {name} (about {format_duration(remaining_s)} left in all)")
        begin_s = time.monotonic()
        yield
        took_s = time.monotonic() - begin_s
        self._done_real_s += took_s
        self._done_expected_s += expected_s
        say(f"[{self._index}/{total}] {name}: done in {format_duration(took_s)}")

    def _pace(self) -> float:
        if self._done_expected_s < 5.0:
            return 1.0
        return max(0.3, min(5.0, self._done_real_s / self._done_expected_s))


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
