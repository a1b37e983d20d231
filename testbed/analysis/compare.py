"""Compares two runs, system by system, and refuses where they were not measured alike.

Two runs are alike if machine, accelerator, workloads and switches are the same; what may differ is
what the comparison is about: the source, and the versions that the manifest names beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.analysis.samples import Run, Sample, load_run
from testbed.analysis.statistics import Interval, unpaired_ratio, verdict
from testbed.analysis.tables import interval_text, status_of, text_table
from testbed.errors import TestbedError

#: Fields of the manifest that describe the machine and its OpenCL device.
MACHINE = (
    ("host", "cpu_model"),
    ("host", "cores"),
    ("host", "memory_mib"),
    ("host", "kernel"),
    ("host", "governor"),
    ("host", "turbo_off"),
    ("opencl", "platform"),
    ("opencl", "device"),
    ("opencl", "driver"),
    ("experiment", "instrumented"),
)
#: Fields that matter where both runs have guests.
GUEST = (
    ("accelerator", "kind"),
    ("guest", "kernel"),
    ("guest", "cpus"),
    ("guest", "memory_kib"),
)
#: What a workload of one name must have in common.
WORKLOAD = ("name", "mode", "data_sha256", "batch", "steps", "warmup_steps", "packages")

#: What may differ, and is shown: it is what the two runs are compared for.
SUBJECT = (
    ("commit", "short"),
    ("commit", "changes_sha256"),
    ("spec_hash",),
    ("artifacts", "qemu", "version"),
    ("artifacts", "image", "kernel_release"),
    ("python", "version"),
)

SLOWER_STATUS = 3
NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Difference:
    """A field of the manifests with both its values."""

    field: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return (
            f"{self.field}: {_shown(self.first)} in the first, {_shown(self.second)} in the second"
        )


@dataclass(frozen=True)
class Pair:
    """One system in one place under one workload, in both runs; `ratio` is second over first."""

    workload: str
    form: str
    placement: str
    system: str
    first: str
    second: str
    ratio: Interval | None
    verdict: str

    @property
    def failed(self) -> bool:
        """Whether it could not be compared because trials went wrong."""
        return self.ratio is None

    @property
    def name(self) -> str:
        return f"{self.workload}, {self.form}, {self.placement}, {self.system}"


@dataclass(frozen=True)
class RunComparison:
    """What came out: either `refusals`, or pairs."""

    first: Path
    second: Path
    refusals: tuple[Difference, ...]
    subjects: tuple[Difference, ...]
    pairs: tuple[Pair, ...]
    only_in_one: tuple[str, ...]


def run_compare(first: Path, second: Path, as_json: bool) -> int:
    """Print the comparison; returns 0, or 3 if the second run is slower somewhere.

    Raises TestbedError if the runs are unlike, or if something has no speed to compare.
    """
    done = compare_runs(first, second)
    if as_json:
        print(json.dumps(json_object(done), indent=2))
    elif not done.refusals:
        print(text(done))
    require_alike(done)
    require_speeds(done)
    return SLOWER_STATUS if any(pair.verdict == "slower" for pair in done.pairs) else 0


def compare_runs(first: Path, second: Path) -> RunComparison:
    """Compare two run directories.

    Raises TestbedError if one cannot be read, or if they have nothing in common.
    """
    runs = (load_run(first), load_run(second))
    cells = [_cells(run) for run in runs]
    common = [cell for cell in cells[0] if cell in cells[1]]
    if not common:
        raise TestbedError(
            f"{first} and {second} have no workload, form, placement and system in common",
            "give two runs of one experiment",
        )
    others = [cell for cell in {**cells[0], **cells[1]} if cell not in common]
    refusals = tuple(_refusals(*runs, common))
    return RunComparison(
        first=first,
        second=second,
        refusals=refusals,
        subjects=tuple(_differences(runs[0].manifest, runs[1].manifest, SUBJECT)),
        pairs=() if refusals else tuple(_pair(runs, cells, cell) for cell in common),
        only_in_one=tuple(", ".join(cell) for cell in others),
    )


def text(done: RunComparison) -> str:
    """The comparison for a terminal."""
    lines = [f"first:  {done.first}", f"second: {done.second}"]
    lines += [str(difference) for difference in done.subjects]
    table = [["workload", "form", "placement", "system", "second / first", "n", "verdict"]]
    for pair in done.pairs:
        place = [pair.workload, pair.form, pair.placement, pair.system]
        if pair.ratio is None:
            table.append([*place, "none", "-", f"{pair.first} / {pair.second}"])
        else:
            table.append([*place, interval_text(pair.ratio), str(pair.ratio.count), pair.verdict])
    lines += ["", *text_table(table, left=4)]
    if done.only_in_one:
        lines += ["", *(f"in one run only: {name}" for name in done.only_in_one)]
    lines += [
        "",
        "ratio of the speeds (steps/s) with its 95 % bootstrap interval; the runs were not"
        " measured at one time: what changed on the machine between them is in it",
    ]
    return "\n".join(lines)


def json_object(done: RunComparison) -> dict[str, Any]:
    """The comparison as plain data."""
    return {
        "first": str(done.first),
        "second": str(done.second),
        "comparable": not done.refusals,
        "refused_for": [asdict(difference) for difference in done.refusals],
        "subjects": [asdict(difference) for difference in done.subjects],
        "pairs": [asdict(pair) for pair in done.pairs],
        "only_in_one": list(done.only_in_one),
    }


def require_alike(done: RunComparison) -> None:
    """Raises TestbedError that names every field in which the runs are unlike."""
    if done.refusals:
        raise TestbedError(
            f"{done.first} and {done.second} were not measured alike: "
            f"{'; '.join(str(difference) for difference in done.refusals)}",
            "compare runs of one machine, accelerator and set of switches",
        )


def require_speeds(done: RunComparison) -> None:
    """Raises TestbedError that names what has no speed in one of the runs."""
    failed = [pair for pair in done.pairs if pair.failed]
    if failed:
        raise TestbedError(
            f"{len(failed)} of {len(done.pairs)} could not be compared, first {failed[0].name}: "
            f"{failed[0].first} in the first run, {failed[0].second} in the second",
            "see ./inv report RUN for the logs of failed trials",
        )


Cell = tuple[str, str, str, str]


def _cells(run: Run) -> dict[Cell, list[Sample]]:
    """(workload, form, placement, system) -> its trials, warm-ups left out."""
    cells: dict[Cell, list[Sample]] = {}
    for group in run.groups:
        for sample in group.samples:
            if not sample.warmup:
                cell = (group.workload, group.form, group.placement, sample.system)
                cells.setdefault(cell, []).append(sample)
    return cells


def _pair(
    runs: Sequence[Run], cells: Sequence[Mapping[Cell, Sequence[Sample]]], cell: Cell
) -> Pair:
    first, second = (
        _speeds(found[cell], run.instrumented) for run, found in zip(runs, cells, strict=True)
    )
    statuses = [status_of(found[cell]) for found in cells]
    ratio = unpaired_ratio(second, first)
    effect = max(run.minimum_effect for run in runs)
    return Pair(*cell, statuses[0], statuses[1], ratio, verdict(ratio, effect))


def _speeds(samples: Sequence[Sample], instrumented: bool) -> list[float]:
    """Steps/s of every trial; none where counting cost time, or where a trial went wrong."""
    if instrumented or status_of(samples) != "ok":
        return []
    found = [sample.number("steps_per_s") for sample in samples]
    return [speed for speed in found if speed is not None and speed > 0]


def _refusals(first: Run, second: Run, common: Sequence[Cell]) -> Iterator[Difference]:
    """Every field in which the runs differ and may not."""
    fields: list[tuple[str, ...]] = [*MACHINE]
    if any(placement != "process" for _, _, placement, _ in common):
        fields += GUEST
    fields += [
        ("workloads", workload, key)
        for workload in dict.fromkeys(cell[0] for cell in common)
        for key in WORKLOAD
    ]
    systems = dict.fromkeys(cell[3] for cell in common)
    fields += [
        ("systems", name, switch) for name in systems for switch in _switches(first, second, name)
    ]
    yield from _differences(first.manifest, second.manifest, fields)
    cells = _cells(first), _cells(second)
    for cell in common:
        networks = [_networks(found[cell]) for found in cells]
        if networks[0] != networks[1]:
            yield Difference(f"network of {', '.join(cell)}", *networks)


def _switches(first: Run, second: Run, name: str) -> list[str]:
    found: dict[str, None] = {}
    for run in (first, second):
        switches = _at(run.manifest, ("systems", name))
        if isinstance(switches, Mapping):
            found |= dict.fromkeys(str(switch) for switch in switches)
    return list(found)


def _networks(samples: Sequence[Sample]) -> str:
    """The network path that a system's trials took, as recorded with each."""
    found = (sample.metrics.get("network") for sample in samples)
    return ", ".join(dict.fromkeys(str(path) for path in found if path)) or NOT_RECORDED


def _differences(
    first: Mapping[str, Any], second: Mapping[str, Any], fields: Sequence[tuple[str, ...]]
) -> Iterator[Difference]:
    for path in fields:
        values = _at(first, path), _at(second, path)
        if values[0] != values[1]:
            yield Difference(".".join(path), *values)


def _at(manifest: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = manifest
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _shown(value: Any) -> str:
    return NOT_RECORDED if value is None else str(value)
