"""The calls of an A/A experiment: bench.call with one system under two names, in turns.

Every figure is that of a session of its own, as in bench.call.  A comparison is recorded when it is
complete, so that a run which was stopped goes on with the next.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from testbed.analysis.rundir import CALLS, read_lines
from testbed.experiment.bench import Place, call_ns, process_place
from testbed.experiment.experiment import Experiment
from testbed.experiment.record import drop_torn_line
from testbed.experiment.systems import system
from testbed.progress import format_duration

CALLS_OF_BLOCK = 2000
BLOCKS = 3
SAY_EVERY = 50

#: Rough seconds of one session, for the estimate of a dry run.
ESTIMATE_SESSION_S = 0.08


def sessions(experiment: Experiment) -> int:
    """How many sessions of bench.call the experiment makes."""
    same = experiment.same
    return 0 if same is None else same.calls * same.rounds * len(experiment.systems)


def measure_calls(experiment: Experiment, run: Path, say: Callable[[str], None]) -> None:
    """Make the comparisons that the run does not have yet, in process placement.

    Raises TestbedError if a part cannot be built or started, or if a session fails.
    """
    same = experiment.same
    if same is None or same.calls == 0:
        return
    path = run / CALLS
    drop_torn_line(path)
    done = len(read_lines(path))
    if done >= same.calls:
        return
    say(f"bench.call: {same.calls - done} comparisons of {same.rounds} rounds")
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="wormhole-same-") as folder:  # noqa: SIM117
        with process_place(Path(folder) / "server") as where:
            for number in range(done, same.calls):
                _append(path, number, _comparison(experiment, where, number))
                made = number + 1 - done
                if (number + 1) % SAY_EVERY == 0 and number + 1 < same.calls:
                    left_s = (time.monotonic() - begin_s) / made * (same.calls - number - 1)
                    say(f"[{number + 1}/{same.calls}] about {format_duration(left_s)} left")


def _comparison(experiment: Experiment, where: Place, number: int) -> dict[str, list[float]]:
    """One figure (ns) of each name for each round; the order of a round is shuffled by the seed."""
    assert experiment.same is not None
    times_ns: dict[str, list[float]] = {chosen.name: [] for chosen in experiment.systems}
    for turn in range(experiment.same.rounds):
        order = list(experiment.systems)
        random.Random(f"{experiment.seed}/calls/{number}/{turn}").shuffle(order)
        for chosen in order:
            made = system(chosen.preset, chosen.overrides, chosen.name)
            times_ns[chosen.name].append(call_ns(where, made, CALLS_OF_BLOCK, BLOCKS))
    return times_ns


def _append(path: Path, number: int, times_ns: dict[str, list[float]]) -> None:
    with path.open("a", encoding="utf-8") as sink:
        sink.write(json.dumps({"comparison": number, "ns": times_ns}) + "\n")
        sink.flush()
        os.fsync(sink.fileno())
