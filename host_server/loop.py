"""The supervisor's event loop: descriptors and timers in one thread, no wake-up without a cause."""

from __future__ import annotations

import heapq
import itertools
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass, field

Callback = Callable[[], None]


@dataclass(order=True)
class Timer:
    """A callback that is due at a monotonic time; cancelled by clearing the callback."""

    due_s: float
    order: int
    callback: Callback | None = field(compare=False)

    def cancel(self) -> None:
        """The callback will not run."""
        self.callback = None


class Loop:
    """Runs callbacks when descriptors become readable or timers are due."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []
        self._order = itertools.count()
        self.stopping = False

    def watch(self, fd: int, callback: Callback) -> None:
        """Call back whenever the descriptor is readable, until `unwatch`."""
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def unwatch(self, fd: int) -> None:
        """Stop watching; harmless if the descriptor is not watched."""
        try:
            self._selector.unregister(fd)
        except KeyError:
            return

    def after(self, delay_s: float, callback: Callback) -> Timer:
        """Call back once, `delay_s` seconds from now."""
        timer = Timer(time.monotonic() + delay_s, next(self._order), callback)
        heapq.heappush(self._timers, timer)
        return timer

    def step(self, limit_s: float | None = None) -> None:
        """Wait for the next event or timer (at most `limit_s`) and run what is due."""
        for key, _ in self._selector.select(self._timeout_s(limit_s)):
            # An earlier callback of this round may have stopped watching this descriptor.
            current = self._selector.get_map().get(key.fd)
            if current is not None and current.data is key.data:
                key.data()
        now_s = time.monotonic()
        while self._timers and self._timers[0].due_s <= now_s:
            callback = heapq.heappop(self._timers).callback
            if callback is not None:
                callback()

    def run(self) -> None:
        """Step until `stopping` is set."""
        while not self.stopping:
            self.step()

    def close(self) -> None:
        """Forget everything watched."""
        self._selector.close()

    def _timeout_s(self, limit_s: float | None) -> float | None:
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return limit_s
        due_s = max(0.0, self._timers[0].due_s - time.monotonic())
        return due_s if limit_s is None else min(due_s, limit_s)
