"""The gate: what counts as the same training, and that nothing incomplete passes."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest

from testbed.errors import TestbedError
from testbed.experiment.events import Trajectory, read_events, read_pattern
from testbed.experiment.gate import check_replay, check_trajectory
from testbed.experiment.workload import Tolerance

EXACT = Tolerance()
LOSSES = [2.3440, 1.5, 0.4917]


def bits(value: float) -> str:
    return struct.pack(">f", value).hex()


def lines(losses: list[str], data: str = "abc") -> list[str]:
    start = {"event": "start", "data_sha256": data}
    steps = [
        {"event": "step", "step": index, "t_ns": 1000 + 10 * index, "loss_bits": loss}
        for index, loss in enumerate(losses)
    ]
    return [json.dumps(event) for event in (start, *steps, {"event": "end"})]


def trajectory(losses: list[float], data: str = "abc") -> Trajectory:
    return read_events(lines([bits(loss) for loss in losses], data))


def test_equal_bits_pass() -> None:
    verdict = check_trajectory(trajectory(LOSSES), trajectory(LOSSES), EXACT, 3)
    assert verdict.passed
    assert verdict.compared == 3


@pytest.mark.parametrize("step", range(3))
def test_one_bit_fails_and_the_step_is_named(step: int) -> None:
    words = [bits(loss) for loss in LOSSES]
    words[step] = f"{int(words[step], 16) ^ 1:08x}"
    verdict = check_trajectory(trajectory(LOSSES), read_events(lines(words)), EXACT, 3)
    assert not verdict.passed
    assert f"step {step}" in verdict.reason
    assert verdict.compared == step + 1


def test_zero_and_minus_zero_differ_bit_for_bit() -> None:
    one, other = trajectory([0.0]), trajectory([-0.0])
    assert not check_trajectory(one, other, EXACT, 1).passed
    assert check_trajectory(one, other, Tolerance(absolute=1e-9), 1).passed


def test_a_tolerance_has_a_bound() -> None:
    tolerance = Tolerance(absolute=0.01, relative=0.1)
    near, far = trajectory([2.0 + 0.2]), trajectory([2.0 + 0.22])
    assert check_trajectory(trajectory([2.0]), near, tolerance, 1).passed
    assert not check_trajectory(trajectory([2.0]), far, tolerance, 1).passed


@pytest.mark.parametrize("losses", [[], LOSSES[:2], [*LOSSES, 0.1]])
def test_a_wrong_number_of_steps_fails_on_either_side(losses: list[float]) -> None:
    assert not check_trajectory(trajectory(LOSSES), trajectory(losses), EXACT, 3).passed
    assert not check_trajectory(trajectory(losses), trajectory(LOSSES), EXACT, 3).passed
    assert not check_trajectory(trajectory(losses), trajectory(losses), EXACT, 3).passed


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_fails_even_if_both_have_it(value: float) -> None:
    both = trajectory([1.0, value])
    for tolerance in (EXACT, Tolerance(absolute=1e9)):
        assert not check_trajectory(both, both, tolerance, 2).passed


def test_other_data_fail() -> None:
    verdict = check_trajectory(trajectory(LOSSES), trajectory(LOSSES, "def"), EXACT, 3)
    assert not verdict.passed
    assert "def" in verdict.reason


def test_a_replay_passes_only_whole_and_equal() -> None:
    good: dict[str, Any] = {"calls": 12, "compared_bytes": 400, "mismatches": 0}
    assert check_replay(good, 12).passed
    assert not check_replay(good, 13).passed
    assert not check_replay({**good, "mismatches": 1, "first_mismatch": "entry 7"}).passed
    assert "entry 7" in check_replay({**good, "mismatches": 1, "first_mismatch": "entry 7"}).reason
    assert not check_replay({**good, "compared_bytes": 0}).passed
    assert not check_replay({**good, "calls": 0}).passed
    for key in good:
        assert not check_replay({name: good[name] for name in good if name != key}).passed


def test_durations_leave_out_the_warm_up() -> None:
    assert trajectory(LOSSES).durations_ns(0) == [10, 10]
    assert trajectory(LOSSES).durations_ns(2) == [10]
    assert trajectory(LOSSES).durations_ns(3) == []


@pytest.mark.parametrize(
    ("event", "named"),
    [
        ({"event": "step", "step": 1, "t_ns": 1}, "expected 0"),
        ({"event": "step", "step": 0, "t_ns": "1"}, "t_ns"),
        ({"event": "step", "step": 0, "t_ns": True}, "t_ns"),
        ({"event": "step", "step": 0, "t_ns": 1, "loss_bits": "4"}, "loss_bits"),
        ({"event": "step", "step": 0, "t_ns": 1, "loss": "x"}, "loss"),
        ({"event": 3}, "event"),
    ],
)
def test_malformed_events_name_their_line(event: dict[str, Any], named: str) -> None:
    with pytest.raises(TestbedError) as caught:
        read_events(["hello", json.dumps(event)])
    assert "line 2" in caught.value.what
    assert named in caught.value.what


def test_a_torn_event_is_an_error_and_other_lines_are_not() -> None:
    assert read_events(["", "{not ours}", "{ }", '"event"']).steps == ()
    with pytest.raises(TestbedError, match="line 1"):
        read_events(['{"event": "step", "st'])


def test_time_must_not_run_backwards() -> None:
    events = lines([bits(1.0), bits(1.0)])
    events[2] = events[2].replace("1010", "999")
    with pytest.raises(TestbedError, match="earlier"):
        read_events(events)


def test_steps_are_read_with_a_pattern() -> None:
    pattern = r"iter (?P<step>\d+): loss (?P<loss>\S+)"
    printed = [(5, "hello"), (10, "iter 7: loss 2.5"), (30, "iter 8: loss 1.25")]
    found = read_pattern(printed, pattern)
    assert [step.loss for step in found.steps] == [2.5, 1.25]
    assert found.durations_ns(0) == [20]
    assert check_trajectory(found, found, EXACT, 2).passed
    with pytest.raises(TestbedError, match="expected 1"):
        read_pattern([(1, "iter 7: loss 1"), (2, "iter 9: loss 1")], pattern)
    with pytest.raises(TestbedError, match="not a number"):
        read_pattern([(1, "iter 7: loss one")], pattern)
