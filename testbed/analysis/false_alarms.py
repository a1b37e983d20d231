"""How often a difference is found where there is none: the A/A comparisons of a run.

One system runs under two names; its rounds are cut into comparisons, and each is judged as any
other comparison is.  "faster" and "slower" are false alarms.  The interval of their rate is that of
Clopper and Pearson (Biometrika 26, 1934), which holds for every rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import binomtest

from testbed.analysis.causes import same_systems
from testbed.analysis.rundir import CALLS, read_lines
from testbed.analysis.samples import Run
from testbed.analysis.statistics import CONFIDENCE, paired_ratio, verdict
from testbed.analysis.tables import speeds_of

ALARMS = ("faster", "slower")


@dataclass(frozen=True)
class FalseAlarms:
    """The comparisons of one kind, their verdicts, and the rate of false alarms."""

    what: str
    rounds: int
    verdicts: Mapping[str, int]
    rate: float
    low: float
    high: float

    @property
    def comparisons(self) -> int:
        return sum(self.verdicts.values())

    @property
    def alarms(self) -> int:
        return sum(self.verdicts.get(word, 0) for word in ALARMS)


def false_alarms(run: Run) -> tuple[FalseAlarms, ...]:
    """The rates of a run; empty if it is no A/A experiment."""
    same = run.experiment.get("same")
    pairs = same_systems(run.manifest)
    if not isinstance(same, Mapping) or not pairs:
        return ()
    first, second = pairs[0]
    rounds = int(same["rounds"])
    found = []
    for group in run.groups:
        speeds = [speeds_of(group.of(name)) for name in (first, second)]
        found.append(_rate(f"{group.title}", rounds, _verdicts(run, speeds[0], speeds[1], rounds)))
    words = []
    for line in read_lines(run.path / CALLS):
        rates = [_rates(line["ns"][name]) for name in (first, second)]
        words += _verdicts(run, rates[0], rates[1], rounds)
    found.append(_rate("bench.call, process placement", rounds, words))
    return tuple(alarms for alarms in found if alarms is not None)


def table(found: Sequence[FalseAlarms]) -> list[list[str]]:
    """As rows of text with headings first."""
    head = ["same system twice", "comparisons", "rounds each", "false alarms", "rate"]
    words = ("faster", "slower", "no difference", "undecided")
    rows = [[*head, *words]]
    for one in found:
        rate = f"{100 * one.rate:.1f} % [{100 * one.low:.1f}, {100 * one.high:.1f}]"
        counts = [str(one.verdicts.get(word, 0)) for word in words]
        rows.append(
            [one.what, str(one.comparisons), str(one.rounds), str(one.alarms), rate, *counts]
        )
    return rows


def sentences(found: Sequence[FalseAlarms]) -> list[str]:
    """A finding for each kind of comparison."""
    return [
        f"{one.what}: of {one.comparisons} comparisons of a system with itself, {one.alarms} found"
        f" a difference - a false-alarm rate of {100 * one.rate:.1f} % (95 % interval"
        f" {100 * one.low:.1f} to {100 * one.high:.1f} %)."
        for one in found
    ]


def records(found: Sequence[FalseAlarms]) -> list[dict[str, Any]]:
    """As plain data."""
    return [
        {
            "what": one.what,
            "rounds": one.rounds,
            "comparisons": one.comparisons,
            "false_alarms": one.alarms,
            "rate": one.rate,
            "rate_low": one.low,
            "rate_high": one.high,
            "verdicts": dict(one.verdicts),
        }
        for one in found
    ]


def _verdicts(
    run: Run, first: Mapping[int, float], second: Mapping[int, float], rounds: int
) -> list[str]:
    """The verdict of every comparison whose rounds both have."""
    words = []
    last = max(first, default=0)
    for begin in range(1, last + 1, rounds):
        numbers = [n for n in range(begin, begin + rounds) if n in first and n in second]
        if len(numbers) == rounds:
            ratio = paired_ratio({n: second[n] for n in numbers}, {n: first[n] for n in numbers})
            words.append(verdict(ratio, run.minimum_effect))
    return words


def _rates(times_ns: Sequence[float]) -> dict[int, float]:
    return {number: 1e9 / time_ns for number, time_ns in enumerate(times_ns, start=1)}


def _rate(what: str, rounds: int, words: Sequence[str]) -> FalseAlarms | None:
    if not words:
        return None
    counts = {word: words.count(word) for word in dict.fromkeys(words)}
    alarms = sum(counts.get(word, 0) for word in ALARMS)
    interval = binomtest(alarms, len(words)).proportion_ci(CONFIDENCE, method="exact")
    return FalseAlarms(
        what, rounds, counts, alarms / len(words), float(interval.low), float(interval.high)
    )
