"""Intervals, ratios and verdicts against known values, scipy, and their own stated coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from testbed.analysis.statistics import (
    Interval,
    bca,
    bootstrap_means,
    expanded_tail,
    geometric_mean,
    mean_interval,
    paired_ratio,
    rate_interval,
    unpaired_ratio,
    verdict,
)


def test_geometric_mean_of_known_values() -> None:
    assert geometric_mean([1.0, 10.0, 100.0]) == pytest.approx(10.0)


def test_few_trials_are_enumerated_exactly() -> None:
    means = bootstrap_means(np.array([0.0, 1.0, 2.0]))
    assert len(means) == 27
    assert means.mean() == pytest.approx(1.0)
    assert sorted(set(np.round(means * 3).astype(int))) == [0, 1, 2, 3, 4, 5, 6]


def test_many_trials_give_the_same_interval_every_time() -> None:
    values = np.log(np.linspace(1.0, 2.0, 12))
    assert mean_interval(values) == mean_interval(values)


def test_bca_agrees_with_scipy() -> None:
    values = np.random.default_rng(5).exponential(size=30)
    low, high = bca(values)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=10_000, method="BCa", rng=np.random.default_rng(6)
    ).confidence_interval
    assert low == pytest.approx(theirs.low, rel=0.02)
    assert high == pytest.approx(theirs.high, rel=0.02)


def test_expanded_tail_is_the_published_formula() -> None:
    # Hesterberg 2015: for n = 5 and a 95 % interval z' = sqrt(5/4) * 2.776.
    assert expanded_tail(5, 0.95) == pytest.approx(
        scipy.stats.norm.cdf(-math.sqrt(5 / 4) * scipy.stats.t.ppf(0.975, 4))
    )


def test_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        low, high = mean_interval(generator.normal(size=8))
        assert low is not None and high is not None
        covered += low <= 0.0 <= high
    # 95 % nominal; the bounds are four standard deviations of the binomial below and above.
    assert 0.90 <= covered / 400 <= 0.99


def test_too_few_trials_have_no_interval() -> None:
    found = rate_interval([3.0, 4.0])
    assert found.estimate == pytest.approx(math.sqrt(12.0))
    assert (found.low, found.high, found.known) == (None, None, False)


def test_pairing_cancels_what_a_round_shares() -> None:
    # The machine is twice as slow in rounds 2 and 4; the ratio is 3 in every round.
    speed = {1: 1.0, 2: 0.5, 3: 1.0, 4: 0.5, 5: 1.0}
    ratio = paired_ratio({k: 3 * v for k, v in speed.items()}, speed)
    assert ratio is not None
    assert (ratio.estimate, ratio.low, ratio.high) == pytest.approx((3.0, 3.0, 3.0))


def test_only_rounds_with_both_systems_count() -> None:
    ratio = paired_ratio({1: 2.0, 2: 4.0, 4: 9.0}, {1: 1.0, 2: 1.0, 3: 1.0})
    assert ratio is not None
    assert ratio.count == 2
    assert paired_ratio({1: 2.0}, {2: 1.0}) is None


@pytest.mark.parametrize(
    ("estimate", "low", "high", "expected"),
    [
        (3.0, 2.5, 3.5, "faster"),
        (0.5, 0.4, 0.6, "slower"),
        (1.005, 0.99, 1.015, "no difference"),
        (1.01, 1.005, 1.03, "undecided"),
        (1.2, 0.9, 1.6, "undecided"),
        (3.0, None, None, "undecided"),
    ],
)
def test_verdict_needs_evidence_and_effect(
    estimate: float, low: float | None, high: float | None, expected: str
) -> None:
    assert verdict(Interval(estimate, low, high, 5), 0.02) == expected


def test_rates_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        rate_interval([1.0, 0.0])


@pytest.mark.parametrize("count", [3, 4])
def test_few_trials_are_not_trusted_beyond_what_they_can_show(count: int) -> None:
    # Between the smallest and the largest of three the true mean lies in 75 % of all cases.
    generator = np.random.default_rng(2)
    covered = within = 0
    for _ in range(600):
        values = generator.normal(size=count)
        low, high = mean_interval(values)
        assert low is not None and high is not None
        covered += low <= 0.0 <= high
        within += bool(values.min() <= 0.0 <= values.max())
    assert within / 600 < 0.92
    assert 0.92 <= covered / 600 <= 0.98


def test_three_trials_can_show_a_large_effect() -> None:
    ratio = paired_ratio({1: 4.5, 2: 6.0, 3: 5.1}, {1: 1.0, 2: 1.0, 3: 1.0})
    assert verdict(ratio, 0.02) == "faster"
    assert verdict(paired_ratio({1: 1.02, 2: 1.2, 3: 1.3}, {1: 1, 2: 1, 3: 1}), 0.02) == "undecided"


def test_the_interval_of_two_runs_covers_with_three_trials_each() -> None:
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        first, second = np.exp(generator.normal(size=(2, 3)))
        ratio = unpaired_ratio(list(first), list(second))
        assert ratio is not None and ratio.low is not None and ratio.high is not None
        covered += ratio.low <= 1.0 <= ratio.high
    assert covered / 200 >= 0.90
