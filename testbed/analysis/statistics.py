"""Means, ratios and verdicts with intervals.  Pure; the same data give the same numbers.

**Mean of a rate.** The geometric mean over trials, exp(mean(log x)): the ratio of two such means
is the geometric mean of the ratios, so the columns of a table agree (Fleming and
Wallace, "How not to lie with statistics", CACM 29(3), 1986).

**Ratio of two systems.** Paired by round: r_k = contender_k / baseline_k for each round k that both
finished; the estimate is the geometric mean of the r_k.  What changes slowly on a machine hits both
systems of a round and cancels.

**Ratio of two runs.** Their rounds are not those of one time, so nothing is paired: the ratio of
the geometric means, each run's trials resampled by themselves.

**Interval.** The bootstrap of mean(log x): trials are drawn with replacement (every possible draw
where there are few, else a fixed number from a fixed seed).  With few trials the plain percentile
interval is too short, because the bootstrap's spread has a divisor of n instead of n - 1 and normal
instead of Student tails; the percentiles are therefore widened to the level a' with

    z(a'/2) = sqrt(n / (n - 1)) * t(n - 1, a/2)

(the expanded percentile interval: Hesterberg, "What teachers should know about the bootstrap", The
American Statistician 69(4), 2015).  No resampled mean lies beyond the smallest and largest trial,
between which the true one lies in no more than 1 - 2 / 2^n of all cases: 75 % of them with three
trials, 94 % with five.  So the interval is never shorter than Student's, which has no such limit.
`bca` gives the bias-corrected and accelerated
interval (Efron, JASA 82, 1987) for comparison.  Fewer than three trials give no interval.  For the
ratio of two runs each side's resampled means are spread by sqrt(n / (n - 1)) and the percentiles
are those of Student's t with Welch's degrees of freedom (Biometrika 34, 1947), nor is that interval
shorter than Welch's own.

**Verdict.** With a smallest effect that matters, e (0.02 unless the experiment says otherwise):

    faster          the interval lies above 1 and the estimate is at least 1 + e
    slower          the interval lies below 1 and the estimate is at most 1 / (1 + e)
    no difference   the interval lies within 1 / (1 + e) ... 1 + e
    undecided       anything else, and whenever there is no interval
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

CONFIDENCE = 0.95
RESAMPLES = 10_000
SEED = 20_201_031
TRIALS_NEEDED = 3

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval; `low` and `high` are None where there are too few trials."""

    estimate: float
    low: float | None
    high: float | None
    count: int

    @property
    def known(self) -> bool:
        return self.low is not None and self.high is not None


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean(log x)) of positive values."""
    return math.exp(_mean_log(values))


def rate_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Geometric mean of positive rates, with its interval."""
    logs = np.log(_positive(values))
    low, high = mean_interval(logs, confidence)
    return Interval(float(np.exp(logs.mean())), _exp(low), _exp(high), len(logs))


def paired_ratio(
    contender: Mapping[int, float], baseline: Mapping[int, float], confidence: float = CONFIDENCE
) -> Interval | None:
    """Ratio contender / baseline paired by round; None if no round has both.

    Keys are rounds, values positive rates.
    """
    rounds = sorted(set(contender) & set(baseline))
    if not rounds:
        return None
    return rate_interval([contender[k] / baseline[k] for k in rounds], confidence)


def unpaired_ratio(
    contender: Sequence[float], baseline: Sequence[float], confidence: float = CONFIDENCE
) -> Interval | None:
    """Ratio of the geometric means of two independent sets of rates; None if one is empty.

    `count` is that of the smaller set.
    """
    if not contender or not baseline:
        return None
    above, below = np.log(_positive(contender)), np.log(_positive(baseline))
    difference = float(above.mean() - below.mean())
    count = min(len(above), len(below))
    if count < TRIALS_NEEDED:
        return Interval(math.exp(difference), None, None, count)
    # Seeds apart: equal data must not be drawn alike, or they would cancel.
    spread = _spread_means(above, SEED) - _spread_means(below, SEED + 1)
    t = -float(stdtrit(_welch_freedom(above, below), (1.0 - confidence) / 2))
    tail = NormalDist().cdf(-t)
    low, high = _quantiles(spread, tail, 1.0 - tail)
    half = t * math.sqrt(sum(float(x.var(ddof=1)) / len(x) for x in (above, below)))
    low, high = min(low, -half), max(high, half)
    return Interval(
        math.exp(difference), math.exp(difference + low), math.exp(difference + high), count
    )


def mean_interval(
    values: _Floats, confidence: float = CONFIDENCE
) -> tuple[float | None, float | None]:
    """The wider of the expanded percentile interval of the mean and Student's.

    (None, None) with fewer than three values.
    """
    count = len(values)
    if count < TRIALS_NEEDED:
        return None, None
    tail = expanded_tail(count, confidence)
    low, high = _quantiles(bootstrap_means(values), tail, 1.0 - tail)
    mean = float(values.mean())
    half = _student(count, confidence) * float(values.std(ddof=1)) / math.sqrt(count)
    return min(low, mean - half), max(high, mean + half)


def expanded_tail(count: int, confidence: float) -> float:
    """The widened tail probability a'/2 of the expanded percentile interval."""
    return NormalDist().cdf(-math.sqrt(count / (count - 1)) * _student(count, confidence))


def _student(count: int, confidence: float) -> float:
    """How many standard errors a mean of `count` values may be off, by Student's t."""
    return -float(stdtrit(count - 1, (1.0 - confidence) / 2))


def bca(values: _Floats, confidence: float = CONFIDENCE) -> tuple[float | None, float | None]:
    """Bias-corrected and accelerated bootstrap interval of the mean."""
    count = len(values)
    if count < TRIALS_NEEDED:
        return None, None
    means = bootstrap_means(values)
    observed = float(values.mean())
    below = float(np.mean(means < observed) + np.mean(means == observed) / 2)
    if not 0.0 < below < 1.0:
        return observed, observed
    normal = NormalDist()
    bias = normal.inv_cdf(below)
    # Jackknife means, each without one value; their skewness gives the acceleration.
    left_out = (values.sum() - values) / (count - 1)
    deviation = left_out.mean() - left_out
    spread = float((deviation**2).sum())
    acceleration = float((deviation**3).sum()) / (6.0 * spread**1.5) if spread > 0 else 0.0
    tails = []
    for level in ((1.0 - confidence) / 2, (1.0 + confidence) / 2):
        shifted = bias + normal.inv_cdf(level)
        tails.append(normal.cdf(bias + shifted / (1.0 - acceleration * shifted)))
    return _quantiles(means, tails[0], tails[1])


def _spread_means(values: _Floats, seed: int) -> _Floats:
    """Deviations of resampled means from the mean, with the spread of n - 1."""
    count = len(values)
    draws = np.random.default_rng(seed).integers(0, count, size=(RESAMPLES, count))
    deviations: _Floats = values[draws].mean(axis=1) - values.mean()
    deviations *= math.sqrt(count / (count - 1))
    return deviations


def _welch_freedom(above: _Floats, below: _Floats) -> float:
    """Welch's degrees of freedom of a difference of means; the smaller set's where none varies."""
    parts = [float(values.var(ddof=1)) / len(values) for values in (above, below)]
    if sum(parts) == 0.0:
        return min(len(above), len(below)) - 1
    return sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (above, below), strict=True)
    )


def bootstrap_means(values: _Floats, resamples: int = RESAMPLES, seed: int = SEED) -> _Floats:
    """Means of draws with replacement: all n**n of them where that is few, else a random sample."""
    count = len(values)
    if count**count <= resamples:
        draws = np.array(list(itertools.product(range(count), repeat=count)))
    else:
        draws = np.random.default_rng(seed).integers(0, count, size=(resamples, count))
    means: _Floats = values[draws].mean(axis=1)
    return means


def verdict(ratio: Interval | None, minimum_effect: float) -> str:
    """faster, slower, no difference or undecided: see the module's text."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return "undecided"
    bound = 1.0 + minimum_effect
    if ratio.low > 1.0 and ratio.estimate >= bound:
        return "faster"
    if ratio.high < 1.0 and ratio.estimate <= 1.0 / bound:
        return "slower"
    if ratio.low >= 1.0 / bound and ratio.high <= bound:
        return "no difference"
    return "undecided"


def _quantiles(sorted_or_not: _Floats, low: float, high: float) -> tuple[float, float]:
    found = np.quantile(sorted_or_not, [low, high])
    return float(found[0]), float(found[1])


def _positive(values: Sequence[float]) -> _Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not bool(np.all(array > 0)):
        raise ValueError(f"rates must be positive and there must be some: {list(values)}")
    return array


def _mean_log(values: Sequence[float]) -> float:
    return float(np.log(_positive(values)).mean())


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value)
