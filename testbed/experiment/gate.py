"""The correctness gate: a trial counts only if it computed what native computed.

Pure comparisons.  A trial whose verdict is not `passed` is a failed trial, and no speed is printed
for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from testbed.experiment.events import Step, Trajectory
from testbed.experiment.workload import Tolerance


@dataclass(frozen=True)
class Verdict:
    """Whether a trial passed, over how many values, and the first thing that was wrong."""

    passed: bool
    compared: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        """As it stands in a trial's record."""
        return asdict(self)


def check_trajectory(
    reference: Trajectory, observed: Trajectory, tolerance: Tolerance, steps: int
) -> Verdict:
    """Compare the losses of a trial with native's, bit for bit unless there is a tolerance.

    Both must have exactly `steps` steps, every loss must be finite, and both must have used the
    same data.
    """
    for name, trajectory in (("the reference", reference), ("the trial", observed)):
        problem = _incomplete(name, trajectory, steps)
        if problem:
            return Verdict(False, 0, problem)
    data = [trajectory.start.get("data_sha256") for trajectory in (reference, observed)]
    if data[0] != data[1]:
        return Verdict(False, 0, f"the data differ: {data[0]} natively, {data[1]} in the trial")
    for count, (expected, got) in enumerate(zip(reference.steps, observed.steps, strict=True)):
        if not _same(expected, got, tolerance):
            return Verdict(
                False,
                count + 1,
                f"step {got.index}: loss {got.loss!r} ({got.loss_bits}), "
                f"natively {expected.loss!r} ({expected.loss_bits})",
            )
    how = "bit for bit" if tolerance.is_exact else "within the tolerance"
    return Verdict(True, steps, f"{steps} losses equal {how}")


def check_legs(
    reference: Trajectory, observed: Trajectory, tolerance: Tolerance
) -> dict[str, Verdict]:
    """The verdict of each leg that native had: one of which steps are missing has not passed."""
    found = {leg.name: leg for leg in observed.legs}
    verdicts = {}
    for leg in reference.legs:
        expected = reference.of_leg(leg)
        got = observed.of_leg(found[leg.name]) if leg.name in found else Trajectory(())
        verdicts[leg.name] = check_trajectory(expected, got, tolerance, leg.steps)
    return verdicts


def check_replay(result: Mapping[str, Any], expected_calls: int | None = None) -> Verdict:
    """Judge the `result` event of a replay, which compared every reply with the recorded one.

    `expected_calls` is the recording's number of calls, where known.
    """
    wrong = [
        key
        for key in ("calls", "compared_bytes", "mismatches")
        if not isinstance(result.get(key), int) or isinstance(result.get(key), bool)
    ]
    if wrong:
        return Verdict(False, 0, f"the replay gave no number under `{wrong[0]}`: it did not finish")
    compared = int(result["compared_bytes"])
    if result["mismatches"] != 0:
        first = result.get("first_mismatch", "see the trial's log")
        return Verdict(False, compared, f"{result['mismatches']} replies differ; first: {first}")
    if expected_calls is not None and result["calls"] != expected_calls:
        return Verdict(
            False, compared, f"{result['calls']} calls replayed of {expected_calls} recorded"
        )
    if result["calls"] == 0 or compared == 0:
        return Verdict(False, compared, "the replay compared nothing")
    return Verdict(True, compared, f"{result['calls']} calls, {compared} bytes equal")


def _incomplete(name: str, trajectory: Trajectory, steps: int) -> str:
    """What a trajectory lacks, or an empty text."""
    if len(trajectory.steps) != steps:
        return f"{name} has {len(trajectory.steps)} steps of {steps}"
    for step in trajectory.steps:
        if step.loss is None:
            return f"{name} gives no loss for step {step.index}"
        if not math.isfinite(step.loss):
            return f"{name} has the loss {step.loss} in step {step.index}"
    return ""


def _same(expected: Step, got: Step, tolerance: Tolerance) -> bool:
    if tolerance.is_exact:
        return expected.loss_bits == got.loss_bits
    assert expected.loss is not None and got.loss is not None
    bound = tolerance.absolute + tolerance.relative * abs(expected.loss)
    return abs(got.loss - expected.loss) <= bound
