"""What the trials of an experiment run: workloads prepared once, before the first trial.

Preparing costs minutes and must not fall into a measurement: the data and weights are made, the
reference trajectory is computed natively, and for replays the call stream is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.experiment.data import describe
from testbed.experiment.events import Trajectory
from testbed.experiment.experiment import WorkloadChoice
from testbed.experiment.outcome import Expectation
from testbed.experiment.plan import Trial
from testbed.experiment.prepare import Bundle, prepare, reference
from testbed.experiment.provenance import file_sha256
from testbed.experiment.workload import Command, Model, Workload, find_workload

#: What a leg's own event says in the place of its program's file.
LEG_FACTS = ("data_sha256", "mode", "batch", "steps", "warmup_steps", "optimiser_steps")


@dataclass(frozen=True)
class Recorded:
    """A recorded call stream and the number of calls in it."""

    path: Path
    calls: int | None
    sha256: str


Recorder = Callable[[Bundle], Recorded]


@dataclass(frozen=True)
class Subject:
    """A prepared workload.  `recorded` is there if the experiment replays it."""

    workload: Workload
    bundle: Bundle
    trajectory: Trajectory | None
    recorded: Recorded | None

    def expectation(self, form: str) -> Expectation:
        """What must come out of a trial of this form."""
        if form == "replay":
            calls = self.recorded.calls if self.recorded else None
            return Expectation(self.workload, replayed_calls=calls)
        return Expectation(self.workload, reference=self.trajectory)

    def to_json(self) -> dict[str, Any]:
        """What the manifest says about it."""
        task = self.workload.task
        return {
            "name": self.workload.name,
            "sha256": self.workload.sha256,
            "bundle": self.bundle.key,
            "data_sha256": self.bundle.data_sha256,
            "data": describe(task.data) if isinstance(task, Model) else None,
            "mode": task.mode if isinstance(task, Model) else None,
            "batch": task.batch if isinstance(task, Model) else None,
            "steps": self.workload.steps,
            "warmup_steps": self.workload.warmup_steps,
            "exact": self.workload.tolerance.is_exact,
            "packages": {p.name: [p.version, p.sha256] for p in self.workload.packages},
            "environment": dict(self.workload.environment),
            "metrics": {metric.name: metric.unit for metric in task.metrics}
            if isinstance(task, Command)
            else {},
            "recording": None
            if self.recorded is None
            else {"sha256": self.recorded.sha256, "calls": self.recorded.calls},
        }


def described(subjects: Mapping[str, Subject]) -> dict[str, Any]:
    """What the manifest says of all workloads, and of the legs of programs as workloads too.

    Where programs have legs of one name, what differs between those is not said.
    """
    found: dict[str, Any] = {label: subject.to_json() for label, subject in subjects.items()}
    for label, subject in subjects.items():
        for leg in subject.trajectory.legs if subject.trajectory is not None else ():
            facts = {
                **{key: leg.facts.get(key) for key in LEG_FACTS},
                **{"name": leg.name, "program": label},
            }
            of_leg = {**found[label], **facts}
            before = found.get(leg.name, of_leg)
            found[leg.name] = {k: v if before.get(k) == v else None for k, v in of_leg.items()}
    return found


def prepare_subjects(
    trials: Iterable[Trial],
    record: Recorder,
    say: Callable[[str], None],
    references: Path | None = None,
) -> dict[str, Subject]:
    """Prepare every workload of the trials, by label.  Raises TestbedError naming the workload.

    `references` is where what programs print natively is kept, and taken from.
    """
    forms: dict[WorkloadChoice, set[str]] = {}
    for trial in trials:
        forms.setdefault(trial.workload, set()).add(trial.form)
        if trial.system.is_gvirtus:
            _check_gvirtus(trial)
    subjects: dict[str, Subject] = {}
    for choice, wanted in forms.items():
        say(f"preparing {choice.label}: data, weights, native reference")
        workload = find_workload(choice.name).resized(choice.batch, choice.steps, choice.mode)
        bundle = prepare(workload)
        trajectory = reference(bundle, references)
        recorded = None
        if "replay" in wanted:
            say(f"recording the calls of {choice.label}")
            recorded = record(bundle)
        subjects[choice.label] = Subject(workload, bundle, trajectory, recorded)
    return subjects


def _check_gvirtus(trial: Trial) -> None:
    """Raises TestbedError for what uses OpenCL, which GVirtuS does not forward."""
    task = find_workload(trial.workload.name).task
    # Models are trained by tinygrad on OpenCL, and recordings are of its calls.
    if trial.form == "replay" or isinstance(task, Model) or task.api != "cuda":
        raise TestbedError(
            f"gvirtus forwards CUDA, and {trial.workload.label} ({trial.form}) uses OpenCL",
            "give gvirtus a part of its own, with the application form of CUDA programs",
        )


def recorded_file(path: Path, calls: int | None) -> Recorded:
    """Describe a recording that lies in a file."""
    return Recorded(path, calls, file_sha256(path) or "")
