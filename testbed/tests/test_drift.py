"""Mixed calls from many threads, every result checked: the short form of `./inv drift`."""

from __future__ import annotations

import pytest

from testbed.experiment.drift import drift

CALLS = 60_000
PINGPONGS = 5_000
SEED = 3


@pytest.mark.native
@pytest.mark.opencl
def test_every_result_is_right() -> None:
    done = list(drift(CALLS, PINGPONGS, SEED))
    assert sum(series.calls for series in done) >= CALLS + PINGPONGS
    # Too short to tell whether memory grows; ./inv drift does. Without sleepers it shows nothing.
    assert all(series.client_sleeps > 0 and series.worker_sleeps > 0 for series in done)
