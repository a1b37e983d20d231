"""Judging made-up attempts: what counts as ok, mismatch, failed and timeout."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.analysis.measure import own_cpu_s
from testbed.experiment.events import read_events, read_json_objects
from testbed.experiment.outcome import Attempt, Expectation, HostTime, assemble
from testbed.experiment.plan import Trial, make_plan
from testbed.experiment.workload import Command, OwnMetric, find_workload
from testbed.tests.experiments import example

STEPS = 6


def step_events(losses: list[float]) -> list[dict[str, Any]]:
    start = {"event": "start", "data_sha256": "d"}
    steps = [
        {
            "event": "step",
            "step": index,
            "t_ns": 10_000_000 * (index + 1),
            "loss": loss,
            "loss_bits": struct.pack(">f", loss).hex(),
        }
        for index, loss in enumerate(losses)
    ]
    return [start, *steps, {"event": "end", "steps": len(losses)}]


def expectation() -> Expectation:
    workload = replace(find_workload("lenet-digits"), steps=STEPS, warmup_steps=2)
    lines = [json.dumps(event) for event in step_events([1.0] * STEPS)]
    return Expectation(workload, reference=read_events(lines))


def attempt(events: list[dict[str, Any]], **changes: Any) -> Attempt:
    plain = Attempt(
        status=0,
        timed_out=False,
        user_s=1.0,
        system_s=0.5,
        max_rss_kib=1000,
        wall_s=2.0,
        where="host",
        events=events,
    )
    return replace(plain, **changes)


def trial(form: str) -> Trial:
    return next(t for t in make_plan(example(), "tcg") if t.form == form)


def test_a_right_trajectory_has_a_speed() -> None:
    outcome = assemble(trial("application"), expectation(), attempt(step_events([1.0] * STEPS)), {})
    assert outcome.result.status == "ok"
    assert outcome.result.metrics["steps_per_s"] == pytest.approx(100.0)
    assert outcome.extra["gate"] == {
        "passed": True,
        "compared": STEPS,
        "reason": f"{STEPS} losses equal bit for bit",
    }


@pytest.mark.parametrize(
    ("events", "changes", "status", "detail"),
    [
        (step_events([1.0] * 5 + [1.0000001]), {}, "mismatch", "step 5: loss 1.00000011"),
        (step_events([1.0] * 5), {}, "mismatch", "the trial has 5 steps of 6"),
        (step_events([1.0] * 6), {"status": 1, "complaint": "no device"}, "failed", "no device"),
        (step_events([1.0] * 6), {"status": -9}, "failed", "signal 9"),
        (step_events([1.0] * 3), {"status": -9, "timed_out": True}, "timeout", "after 2 s"),
        ([{"event": "step", "step": "x", "t_ns": 1}], {}, "failed", "not a whole number"),
    ],
)
def test_wrong_applications(
    events: list[dict[str, Any]], changes: dict[str, Any], status: str, detail: str
) -> None:
    outcome = assemble(trial("application"), expectation(), attempt(events, **changes), {})
    assert outcome.result.status == status
    assert detail in outcome.result.detail


REPLAY = {"event": "result", "calls": 100, "compared_bytes": 4000, "mismatches": 0}


@pytest.mark.parametrize(
    ("result", "status_code", "status", "detail"),
    [
        (REPLAY, 0, "ok", ""),
        ({**REPLAY, "mismatches": 2, "first_mismatch": "entry 7"}, 1, "mismatch", "entry 7"),
        ({**REPLAY, "calls": 99}, 0, "mismatch", "99 calls replayed of 100"),
        (None, 1, "failed", "exit status 1"),
        (REPLAY, 1, "failed", "exit status 1"),
    ],
)
def test_replays(result: dict[str, Any] | None, status_code: int, status: str, detail: str) -> None:
    steps = [
        {"event": "step", "step": index, "t_ns": 5_000_000 * (index + 1)} for index in range(STEPS)
    ]
    events = steps if result is None else [*steps, result]
    wanted = replace(expectation(), reference=None, replayed_calls=100)
    outcome = assemble(trial("replay"), wanted, attempt(events, status=status_code), {})
    assert outcome.result.status == status
    assert detail in outcome.result.detail
    if status == "ok":
        assert outcome.result.metrics["steps_per_s"] == pytest.approx(200.0)


def test_a_lost_session_is_named_before_what_came_of_it() -> None:
    lost = "wormhole: the session with the host server is lost"
    result = {**REPLAY, "mismatches": 2, "first_mismatch": "entry 7"}
    wanted = replace(expectation(), reference=None, replayed_calls=100)
    made = replace(attempt([result], status=1), complaint=lost)
    outcome = assemble(trial("replay"), wanted, made, {})
    assert outcome.result.status == "mismatch"
    assert outcome.result.detail.startswith(f"{lost}; 2 replies differ")


def test_steps_of_a_program_without_event_lines_are_found_by_pattern() -> None:
    task = Command(argv=("x",), files=(), step_pattern=r"iter (?P<step>\d+)")
    wanted = expectation()
    wanted = Expectation(replace(wanted.workload, task=task))
    lines = [(20_000_000 * index, f"iter {index}") for index in range(STEPS)]
    outcome = assemble(trial("application"), wanted, attempt([], lines=lines), {})
    assert outcome.result.status == "ok"
    assert outcome.result.metrics["steps_per_s"] == pytest.approx(50.0)


BANDWIDTH = OwnMetric("bandwidth", "GB/s", r"Copy: (?P<value>\S+) GB/s")


@pytest.mark.parametrize(
    ("lines", "status", "said"),
    [
        (["Copy: 1.5 GB/s", "other", "Copy: 2.5 GB/s"], "ok", ""),
        (["Copied: 1.5 GB/s"], "failed", "no line of the program's output gives the metric"),
        (
            ["Copy: fast GB/s"],
            "failed",
            "has 'fast' for `bandwidth`",
        ),
        (["Copy: nan GB/s"], "failed", "'nan'"),
    ],
)
def test_metrics_of_a_program_are_found_by_pattern(
    lines: list[str], status: str, said: str
) -> None:
    task = Command(argv=("x",), files=(), step_pattern=None, metrics=(BANDWIDTH,))
    wanted = Expectation(replace(expectation().workload, task=task))
    heard = attempt([], lines=[(0, line) for line in lines])
    outcome = assemble(trial("application"), wanted, heard, {})
    assert outcome.result.status == status
    assert said in outcome.result.detail
    if status == "ok":
        assert outcome.result.metrics["program.bandwidth"] == 2.5
        assert "steps_per_s" not in outcome.result.metrics


def test_too_few_steps_have_no_speed() -> None:
    workload = replace(expectation().workload, warmup_steps=STEPS)
    outcome = assemble(
        trial("application"), Expectation(workload), attempt(step_events([1.0] * STEPS)), {}
    )
    assert (outcome.result.status, "steps_per_s" in outcome.result.metrics) == ("failed", False)


def test_processor_time_of_a_guest_is_counted_once() -> None:
    host = [HostTime("vm", 4.0, 1.0), HostTime("supervisor", 0.25, 0.0)]
    inside = attempt(step_events([1.0] * STEPS), where="guest", host=host)
    outcome = assemble(trial("application"), expectation(), inside, {})
    assert own_cpu_s(outcome.events) == pytest.approx(5.25)
    assert outcome.result.metrics["vm_user_s"] == 4.0
    assert outcome.result.metrics["client_user_s"] == 1.0


def test_only_json_objects_of_an_output_are_events(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_bytes(b'{"event":"start"}\nhello\n{broken\n[1]\n{"event":"end"}')
    assert read_json_objects(output) == [{"event": "start"}, {"event": "end"}]
    assert read_json_objects(tmp_path / "none") == []
