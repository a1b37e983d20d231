"""The plan of an experiment: which trial runs when.  Pure; the same experiment gives the same plan.

Systems are interleaved in rounds.  The order within a round is shuffled by a generator seeded with
the experiment's seed and the round's own name, so that a plan with more rounds begins with the plan
with fewer, and a resumed run goes on in the order it would have had.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from testbed.experiment.experiment import Experiment, Part, SystemChoice, WorkloadChoice
from testbed.experiment.systems import PLACEMENTS, system

#: Rough seconds for the estimate of a dry run, before anything was measured: what the project's own
#: experiments take on two cores, guests under TCG.  There a round trip over TCP is the slowest.
ESTIMATE_PROCESS_S = {"application": 3.0, "replay": 2.0}
ESTIMATE_GUEST_S = {"application": 7.0, "replay": 3.5}
ESTIMATE_GUEST_TCP_S = {"application": 14.0, "replay": 8.0}
# An emulated server's session takes half a minute to start; there an application traces its step.
ESTIMATE_SERVER_VM_S = {"application": 300.0, "replay": 40.0}
ESTIMATE_BOOT_S = 10.0


Kind = tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    """One run of one workload under one system in one place.

    `id` is stable: it depends on what the trial is, not on when it runs.  Trials of one `vm` share
    a guest, which is booted for the first of them; it is empty where no guest is needed.
    """

    id: str
    part: str
    form: str
    workload: WorkloadChoice
    system: SystemChoice
    placement: str
    round: int
    warmup: bool
    vm: str
    timeout_s: int
    instrument: str = ""

    @property
    def kind(self) -> Kind:
        """Part, placement, workload and system: what trials of about the same time share."""
        return self.part, self.placement, self.workload.label, self.system.name

    @property
    def in_guest(self) -> bool:
        """Whether the client runs in a guest (native never does)."""
        return bool(self.vm)


def make_plan(
    experiment: Experiment, accelerator: str, placements: Sequence[str] | None = None
) -> tuple[Trial, ...]:
    """All trials of an experiment in their order; `placements` restricts them if given.

    `accelerator` is kvm or tcg: native is measured beside guests only where the guest runs on the
    processor itself, because a ratio to emulated code says nothing about forwarding.
    """
    wanted = PLACEMENTS if placements is None else tuple(placements)
    trials: list[Trial] = []
    for placement in PLACEMENTS:
        if placement not in wanted:
            continue
        for part in experiment.parts:
            if placement in part.placements:
                trials.extend(_part_trials(experiment, part, placement, accelerator))
    return tuple(trials)


def vm_sessions(trials: Iterable[Trial]) -> tuple[str, ...]:
    """The guests that will be booted, in order."""
    return tuple(dict.fromkeys(trial.vm for trial in trials if trial.vm))


def pace_of(records: Sequence[Mapping[str, Any]]) -> dict[Kind, float]:
    """Seconds from one trial's end to the next, with all that lies between, by kind of trial.

    `records` are the lines of trials.jsonl.  The median, since a run that was stopped has a gap.
    """
    seen: dict[Kind, list[float]] = {}
    for before, record in pairwise(records):
        ends = [datetime.fromisoformat(str(line["ended_utc"])) for line in (before, record)]
        kind = tuple(str(record[key]) for key in ("part", "placement", "workload", "system"))
        seen.setdefault(kind, []).append((ends[1] - ends[0]).total_seconds())
    return {kind: median(times) for kind, times in seen.items()}


def estimate_s(trials: Sequence[Trial], pace: Mapping[Kind, float] | None = None) -> float:
    """A rough time for the trials in seconds: at an earlier run's pace where that is known."""
    known = pace or {}
    total_s = sum(known[trial.kind] for trial in trials if trial.kind in known)
    others = [trial for trial in trials if trial.kind not in known]
    total_s += ESTIMATE_BOOT_S * len(vm_sessions(others))
    for trial in others:
        total_s += _guess_s(trial)
    return total_s


def _guess_s(trial: Trial) -> float:
    table = ESTIMATE_PROCESS_S
    if trial.placement == "server-vm":
        table = ESTIMATE_SERVER_VM_S
    elif trial.in_guest:
        switches = system(trial.system.preset, trial.system.overrides)
        table = ESTIMATE_GUEST_TCP_S if switches.transport == "tcp" else ESTIMATE_GUEST_S
    return table[trial.form]


def describe(
    experiment: Experiment, trials: Sequence[Trial], pace: Mapping[Kind, float] | None = None
) -> str:
    """The plan as text: what `--dry-run` prints."""
    boots = len(vm_sessions(trials))
    source = ", at the pace of the last run" if pace else ""
    lines = [
        f"{experiment.name}: {len(trials)} trials, {boots} guest boots, "
        f"about {estimate_s(trials, pace) / 60:.0f} min{source} (seed {experiment.seed})"
    ]
    lines += [
        f"{index:5d}  {trial.id}{'  (warm-up)' if trial.warmup else ''}"
        for index, trial in enumerate(trials, start=1)
    ]
    lines.append("first, what of the workloads is not in the cache yet is prepared (minutes)")
    return "\n".join(lines)


def _part_trials(
    experiment: Experiment, part: Part, placement: str, accelerator: str
) -> Iterable[Trial]:
    cells = [
        (workload, chosen, instrument)
        for workload in part.workloads
        for chosen in part.systems
        for instrument in dict.fromkeys(("", part.instrument if _is_ours(chosen) else ""))
        if placement == "process" or _is_ours(chosen) or (chosen.is_native and accelerator == "kvm")
    ]
    for number in range(1 - part.warmup_rounds, part.rounds + 1):
        order = list(cells)
        random.Random(f"{experiment.seed}/{part.name}/{placement}/{number}").shuffle(order)
        for workload, chosen, instrument in order:
            yield _trial(experiment, part, placement, number, workload, chosen, instrument)


def _is_ours(system: SystemChoice) -> bool:
    """Our stub and server: those can be instrumented, and be in guests."""
    return not system.is_native and not system.is_gvirtus


def _trial(
    experiment: Experiment,
    part: Part,
    placement: str,
    number: int,
    workload: WorkloadChoice,
    chosen: SystemChoice,
    instrument: str,
) -> Trial:
    warmup = number < 1
    # Warm-up rounds are numbered w01, w02 ... in the order in which they run.
    label = f"w{number + part.warmup_rounds:02d}" if warmup else f"r{number:02d}"
    trial_id = f"{part.name}/{placement}/{label}/{workload.label}/{chosen.name}"
    trial_id += f"+{instrument}" if instrument else ""
    vm = ""
    if placement != "process" and not chosen.is_native:
        vm = {
            "part": f"{part.name}",
            "round": f"{part.name}/{label}",
            "trial": trial_id,
        }[experiment.restart_guest]
    return Trial(
        id=trial_id,
        part=part.name,
        form=part.form,
        workload=workload,
        system=chosen,
        placement=placement,
        round=number,
        warmup=warmup,
        vm=vm,
        timeout_s=experiment.trial_timeout_s,
        instrument=instrument,
    )
