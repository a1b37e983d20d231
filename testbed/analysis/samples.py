"""The samples of a run: every trial with its metrics, taken from the raw record alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.analysis.measure import Event, Metric, legs_of, measure, step_durations_ms
from testbed.analysis.rundir import OWN_METRIC, TRIALS, read_lines, read_manifest
from testbed.errors import TestbedError


@dataclass(frozen=True)
class Sample:
    """A recorded trial, or one leg of it."""

    id: str
    part: str
    form: str
    workload: str
    system: str
    placement: str
    round: int
    warmup: bool
    status: str
    detail: str
    noise: tuple[str, ...]
    logs: tuple[str, ...]
    metrics: Mapping[str, Metric]
    own: Mapping[str, float]
    step_ms: tuple[float, ...]

    @property
    def noisy(self) -> bool:
        """Whether the host was not quiet, by the rule in the manifest; `noise` says why."""
        return bool(self.noise)

    @property
    def counts(self) -> bool:
        """Whether its speed may be used: it ran, its outputs were right, it is no warm-up."""
        return self.status == "ok" and not self.warmup

    def number(self, metric: str) -> float | None:
        """A metric as a number, or None."""
        value = self.metrics.get(metric)
        return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True)
class Group:
    """Samples that may be compared with each other: one part, workload and placement of one run.

    `own_units` names the figures that the workload's program prints itself, with their units.
    `again` says that another part of the run has the same workload, form and placement.
    """

    part: str
    form: str
    workload: str
    placement: str
    accelerator: str
    systems: tuple[str, ...]
    samples: tuple[Sample, ...]
    own_units: Mapping[str, str]
    again: bool = False

    def of(self, system: str) -> list[Sample]:
        """The samples of a system, warm-ups left out."""
        return [s for s in self.samples if s.system == system and not s.warmup]

    @property
    def place(self) -> str:
        """The placement, with what runs the guest's code where there is a guest."""
        if self.placement == "process":
            return self.placement
        return f"{self.placement} ({self.accelerator.upper()})"

    @property
    def title(self) -> str:
        """Form and placement are always said, and the part where two would be called the same."""
        part = f" ({self.part})" if self.again else ""
        return f"{self.workload}, {self.form}, {self.place} placement{part}"


@dataclass(frozen=True)
class Run:
    """A run directory as read."""

    path: Path
    manifest: Mapping[str, Any]
    groups: tuple[Group, ...]
    instrumented_trials: tuple[Sample, ...] = ()

    @property
    def trials(self) -> list[Sample]:
        """Every recorded trial, also those that are in no group because they were instrumented."""
        return [*(s for group in self.groups for s in group.samples), *self.instrumented_trials]

    @property
    def experiment(self) -> Mapping[str, Any]:
        """The part of the manifest that describes the experiment."""
        value = self.manifest.get("experiment")
        return value if isinstance(value, Mapping) else {}

    def workload(self, label: str) -> Mapping[str, Any]:
        """What the manifest says of a workload; empty if nothing."""
        workloads = self.manifest.get("workloads")
        value = workloads.get(label) if isinstance(workloads, Mapping) else None
        return value if isinstance(value, Mapping) else {}

    @property
    def baseline(self) -> str:
        return str(self.experiment.get("baseline", ""))

    @property
    def rivals(self) -> tuple[str, ...]:
        """Other settings of the baseline; runs before there were any have none."""
        return tuple(str(name) for name in self.experiment.get("rivals", ()))

    @property
    def ladder(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self.experiment.get("ladder", ()))

    def baseline_of(self, part: str) -> str:
        """The baseline of a part, which a run of several experiments has for each."""
        return str(self._part(part).get("baseline") or self.baseline)

    def rivals_of(self, part: str) -> tuple[str, ...]:
        """Other settings of a part's baseline."""
        rivals = self._part(part).get("rivals")
        return self.rivals if rivals is None else tuple(str(name) for name in rivals)

    def ladders_of(self, part: str) -> tuple[tuple[str, ...], ...]:
        """The orders in which a part's systems are compared step by step."""
        ladders = self._part(part).get("ladders")
        if not ladders:
            return (self.ladder,) if self.ladder else ()
        return tuple(tuple(str(name) for name in steps) for steps in ladders)

    def _part(self, name: str) -> Mapping[str, Any]:
        parts = self.experiment.get("parts", ())
        return next((part for part in parts if part.get("name") == name), {})

    @property
    def minimum_effect(self) -> float:
        return float(self.experiment.get("minimum_effect", 0.02))

    @property
    def instrumented(self) -> bool:
        """The device counted every notification: counts are exact, speeds mean nothing."""
        return bool(self.experiment.get("instrumented", False))


def load_run(path: Path) -> Run:
    """Read a run and compute the metrics of every trial from its raw events.

    Raises TestbedError if it is no run directory or its files are damaged.
    """
    manifest = read_manifest(path)
    # Instrumented trials are compared with nothing: what they are for is in breakdown.py.
    samples: dict[bool, list[Sample]] = {False: [], True: []}
    for entry in read_lines(path / TRIALS):
        units = _own_units(manifest, str(entry["workload"]))
        samples[bool(entry.get("instrument"))] += _samples(path, entry, units)
    if not samples[False]:
        raise TestbedError(f"{path} has no finished trial", "go on with --resume, or run anew")
    accelerator = str(manifest.get("accelerator", {}).get("kind", "unknown"))
    groups = _groups(samples[False], manifest, accelerator)
    return Run(path, manifest, groups, tuple(samples[True]))


def _own_units(manifest: Mapping[str, Any], workload: str) -> dict[str, str]:
    facts = manifest.get("workloads", {}).get(workload, {})
    return {str(name): str(unit) for name, unit in (facts.get("metrics") or {}).items()}


def _samples(run: Path, entry: Mapping[str, Any], own_units: Mapping[str, str]) -> list[Sample]:
    """A trial as one sample, or one with legs as a sample of each."""
    events = read_lines(run / str(entry.get("events", "")))
    warmup_steps = int(entry.get("warmup_steps", 0))
    legs = entry.get("legs")
    if not isinstance(legs, Mapping):
        own = {
            name: float(value)
            for name in own_units
            if isinstance(value := entry.get("metrics", {}).get(OWN_METRIC + name), int | float)
        }
        return [_sample(entry, events, warmup_steps, own)]
    found = {name: (warmup, of) for name, warmup, of in legs_of(events, "", warmup_steps)}
    samples = []
    for name, result in legs.items():
        # Of a leg that the program did not come to, nothing was heard.
        warmup, of = found.get(name, (0, []))
        changed = {**entry, **result, "id": f"{entry['id']}#{name}", "workload": name}
        samples.append(_sample(changed, of, warmup, {}))
    return samples


def _sample(
    entry: Mapping[str, Any], events: Sequence[Event], warmup_steps: int, own: Mapping[str, float]
) -> Sample:
    return Sample(
        id=str(entry["id"]),
        part=str(entry["part"]),
        form=str(entry["form"]),
        workload=str(entry["workload"]),
        system=str(entry["system"]),
        placement=str(entry["placement"]),
        round=int(entry["round"]),
        warmup=bool(entry["warmup"]),
        status=str(entry["status"]),
        detail=str(entry.get("detail", "")),
        noise=tuple(str(reason) for reason in entry.get("noise", {}).get("reasons", ())),
        logs=tuple(str(entry[key]) for key in ("logs", "vm_logs") if entry.get(key)),
        metrics=measure(events, warmup_steps),
        own=own,
        step_ms=step_durations_ms(events, warmup_steps),
    )


def _groups(
    samples: Iterable[Sample], manifest: Mapping[str, Any], accelerator: str
) -> tuple[Group, ...]:
    """Split by part, workload and placement; workloads and systems in the experiment's order."""
    experiment = manifest.get("experiment", {})
    order = [str(s["name"]) for s in experiment.get("systems", [])]
    found: dict[tuple[str, str, str, str], list[Sample]] = {}
    for sample in samples:
        key = (sample.part, sample.form, sample.workload, sample.placement)
        found.setdefault(key, []).append(sample)
    # A round's order is chance; placements and parts come one after another.
    workloads = [str(w) for part in experiment.get("parts", []) for w in part.get("workloads", [])]
    places = list(dict.fromkeys((key[3], key[0]) for key in found))
    in_order = sorted(
        found,
        key=lambda key: (
            places.index((key[3], key[0])),
            workloads.index(key[2]) if key[2] in workloads else len(workloads),
        ),
    )
    groups = []
    for key in in_order:
        (part, form, workload, placement), members = key, found[key]
        seen = dict.fromkeys(sample.system for sample in members)
        systems = [name for name in order if name in seen]
        systems += [name for name in seen if name not in order]
        groups.append(
            Group(
                part=part,
                form=form,
                workload=workload,
                placement=placement,
                accelerator=accelerator,
                systems=tuple(systems),
                samples=tuple(members),
                own_units=_own_units(manifest, workload),
                again=sum(other[1:] == key[1:] for other in found) > 1,
            )
        )
    return tuple(groups)
