"""The runner with an executor that runs nothing: order, failures, interruption, resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.analysis.rundir import read_lines
from testbed.errors import TestbedError
from testbed.experiment.plan import Trial, make_plan
from testbed.experiment.record import RunDirectory
from testbed.experiment.runner import TrialFiles, TrialOutcome, run_trials
from testbed.tests.experiments import FakeExecutor, example, new_run


def process_plan() -> tuple[Trial, ...]:
    return make_plan(example(), "tcg", ["process"])


def test_every_trial_is_run_once_in_order_and_recorded(tmp_path: Path) -> None:
    executor = FakeExecutor()
    lines: list[str] = []
    with new_run(tmp_path, example()) as run:
        summary = run_trials(process_plan(), executor, run, lines.append)
    recorded = read_lines(run.path / "trials.jsonl")
    assert executor.ran == [t.id for t in process_plan()] == [line["id"] for line in recorded]
    assert (summary.ran, summary.by_status, executor.closed) == (18, {"ok": 18}, 1)
    assert all((run.path / line["events"]).is_file() for line in recorded)
    assert all((run.path / line["logs"] / "program.log").is_file() for line in recorded)
    assert "left" in lines[0] and lines[-1].startswith("[18/18]")


def test_failed_and_mismatching_trials_are_kept_and_the_run_goes_on(tmp_path: Path) -> None:
    plan = process_plan()
    statuses = {plan[1].id: "failed", plan[4].id: "mismatch", plan[7].id: "timeout"}
    with new_run(tmp_path, example()) as run:
        summary = run_trials(plan, FakeExecutor(statuses), run, lambda _: None)
    assert summary.by_status == {"ok": 15, "failed": 1, "mismatch": 1, "timeout": 1}
    assert [line["status"] for line in read_lines(run.path / "trials.jsonl")][1] == "failed"


class Interrupted(FakeExecutor):
    """Ctrl-C arrives in the middle of the third trial."""

    def run(self, trial: Trial, files: TrialFiles) -> TrialOutcome:
        if len(self.ran) == 2:
            raise KeyboardInterrupt
        return super().run(trial, files)


def test_interruption_closes_and_resume_runs_the_rest(tmp_path: Path) -> None:
    plan, first = process_plan(), Interrupted()
    with new_run(tmp_path, example()) as run, pytest.raises(KeyboardInterrupt):
        run_trials(plan, first, run, lambda _: None)
    assert first.closed == 1
    assert len(read_lines(run.path / "trials.jsonl")) == 2
    second = FakeExecutor()
    with RunDirectory.resume(run.path) as again:
        summary = run_trials(plan, second, again, lambda _: None)
    assert second.ran == [trial.id for trial in plan[2:]]
    assert (summary.ran, summary.skipped) == (16, 2)


class Broken(FakeExecutor):
    """Every trial meets the same fault."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def run(self, trial: Trial, files: TrialFiles) -> TrialOutcome:
        super().run(trial, files)
        raise self._error


def test_a_time_limit_ends_a_run_between_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clocked(FakeExecutor):
        """Each trial takes ten seconds of a clock of its own."""

        now_s = 1000.0

        def run(self, trial: Trial, files: TrialFiles) -> TrialOutcome:
            self.now_s += 10.0
            return super().run(trial, files)

    plan, first = process_plan(), Clocked()
    monkeypatch.setattr("time.monotonic", lambda: first.now_s)
    with new_run(tmp_path, example()) as run:
        # Room for a round of four, and half of the next.
        summary = run_trials(plan, first, run, lambda _: None, deadline_s=1060.0)
    assert (summary.ran, summary.left, first.closed) == (4, len(plan) - 4, 1)
    assert {trial.round for trial in plan[:4]} == {0}
    # Less than a round is left: nothing runs, also where another process measured the pace.
    second = Clocked()
    second.now_s = 0.0
    monkeypatch.setattr("time.monotonic", lambda: second.now_s)
    with RunDirectory.resume(run.path) as again:
        nothing = run_trials(plan, second, again, lambda _: None, deadline_s=5.0)
        assert (nothing.ran, nothing.skipped, nothing.left) == (0, 4, len(plan) - 4)
        # Without a limit the rest runs, in the order that it would have had.
        rest = run_trials(plan, second, again, lambda _: None)
    assert (rest.ran, rest.left) == (len(plan) - 4, 0)
    assert first.ran + second.ran == [trial.id for trial in plan]


def test_a_round_that_lasts_longer_than_expected_ends_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(FakeExecutor):
        now_s = 0.0

        def run(self, trial: Trial, files: TrialFiles) -> TrialOutcome:
            self.now_s += 10.0
            return super().run(trial, files)

    slow = Slow()
    monkeypatch.setattr("time.monotonic", lambda: slow.now_s)
    with new_run(tmp_path, example()) as run:
        # Nothing is known of the first round.
        summary = run_trials(process_plan(), slow, run, lambda _: None, deadline_s=25.0)
    assert summary.ran == 2


def test_a_broken_set_up_stops_the_run_early(tmp_path: Path) -> None:
    executor = Broken(TestbedError("no device", "install one"))
    with (
        new_run(tmp_path, example()) as run,
        pytest.raises(TestbedError, match="first 6 trials all failed, the last with: no device"),
    ):
        run_trials(process_plan(), executor, run, lambda _: None)
    assert (len(executor.ran), executor.closed) == (6, 1)


def test_a_fault_of_ours_is_a_failed_trial_with_its_trace(tmp_path: Path) -> None:
    plan = process_plan()[:1]
    with new_run(tmp_path, example()) as run:
        run_trials(plan, Broken(ZeroDivisionError("oops")), run, lambda _: None)
    (line,) = read_lines(run.path / "trials.jsonl")
    assert (line["status"], line["detail"]) == ("failed", "ZeroDivisionError: oops")
    assert "oops" in (run.path / line["logs"] / "traceback.txt").read_text()
