"""Conducts one experiment from its file to its tables: prepare, measure, record, evaluate.

The part in `process` placement comes first and is evaluated at once, since it needs neither QEMU
nor a guest image; those are built only when the first guest is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.analysis.rundir import TRIALS, read_lines, read_manifest
from testbed.errors import TestbedError
from testbed.experiment import provenance
from testbed.experiment.executor import (
    Executor,
    NativeParts,
    RunningGuest,
    Settings,
    backend_of,
    uses_host_python,
)
from testbed.experiment.experiment import (
    EXPERIMENTS,
    Experiment,
    Part,
    find_experiment,
    load_experiment,
)
from testbed.experiment.plan import Kind, describe, make_plan, pace_of
from testbed.experiment.prepare import Bundle
from testbed.experiment.record import RunDirectory
from testbed.experiment.runner import Summary, run_trials
from testbed.experiment.same import ESTIMATE_SESSION_S, measure_calls, sessions
from testbed.experiment.subject import (
    Recorded,
    Subject,
    described,
    prepare_subjects,
    recorded_file,
)
from testbed.experiment.systems import PLACEMENTS, system
from testbed.experiment.workload import find_workload
from testbed.machine.gvirtus import find_gvirtus
from testbed.machine.host_python import python_tree
from testbed.machine.prebuilt import bundle_facts
from testbed.root import ROOT

if TYPE_CHECKING:
    from testbed.analysis.report import Report

RESULTS = ROOT / "results"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What was asked for: an experiment by name or path, or a stopped run to go on with."""

    experiment: str
    out: Path = RESULTS
    resume: Path | None = None
    placements: tuple[str, ...] | None = None
    changed_source: bool = False  # a stopped run may go on though the source has changed
    limit_s: float | None = None  # stop between rounds before so many seconds have passed
    report: bool = True  # tables, figures and page at the end; without, the records are all


@dataclass(frozen=True)
class Conducted:
    """A run that ended: its directory, its report (if one was made), and what happened in it."""

    path: Path
    report: Report | None
    summary: Summary


def dry_run(request: Request) -> str:
    """What would run, as text with a rough time: the plan, less what a stopped run has already."""
    experiment = _experiment(request)
    experiment = experiment.without(_absent(experiment))
    trials = make_plan(experiment, "tcg", request.placements)
    if request.resume is not None:
        finished = {str(line["id"]) for line in read_lines(request.resume / TRIALS)}
        trials = tuple(trial for trial in trials if trial.id not in finished)
    text = describe(experiment, trials, _last_pace(request, experiment))
    if sessions(experiment) and _only("process", request.placements):
        minutes = sessions(experiment) * ESTIMATE_SESSION_S / 60
        text += f"\nthen {sessions(experiment)} sessions of bench.call, about {minutes:.0f} min"
    return text


def _last_pace(request: Request, experiment: Experiment) -> dict[Kind, float]:
    """The pace of the stopped run, or of the last run of the experiment; empty if there is none."""
    runs = sorted((request.out / experiment.name).glob("*/" + TRIALS))
    if request.resume is not None:
        runs = [request.resume / TRIALS]
    return pace_of(read_lines(runs[-1])) if runs else {}


def conduct(request: Request, say: Say, show: Callable[[str, Report], None]) -> Conducted:
    """Run an experiment, or what is left of one.

    `say` gets lines of progress; `show` the report after each placement.  Whatever ends the run,
    nothing of it keeps running, and what was measured stays on disk.  An offline bundle has not
    what tables and figures are made with: there the records are all.  Raises TestbedError.
    """
    deadline_s = None if request.limit_s is None else time.monotonic() + request.limit_s
    whole = _experiment(request)
    absent = _absent(whole)
    for name, reason in absent.items():
        say(f"{name} is left out: {reason}")
    experiment = whole.without(absent)
    if not make_plan(experiment, "kvm", request.placements):
        # Said before anything is made: nothing of such a run is worth a directory.
        raise TestbedError(
            f"{experiment.name} has no trial in {', '.join(request.placements or ())} placement",
            "ask for a placement that the experiment has",
        )
    with _run_directory(request, experiment) as run:
        manifest = run.manifest()
        manifest["left_out"] = absent
        try:
            summary = _measure(experiment, request, run, manifest, say, show, deadline_s)
            if _only("process", request.placements) and not summary.left:
                measure_calls(experiment, run.path, say)
        except BaseException:
            _mark(run, manifest, "stopped")
            if request.resume is None:
                resume = shlex.quote(str(run.path))
                say(f"stopped; go on with: ./inv run {experiment.name} --resume {resume}")
            raise
        _mark(run, manifest, "limited" if summary.left else "finished")
        report = None
        if _wants_report(request, summary):
            from testbed.analysis.report import write_page

            say("drawing figures and writing the report")
            report = write_page(run.path)
    return Conducted(run.path, report, summary)


def _wants_report(request: Request, summary: Summary) -> bool:
    """A bundle has not what tables are made with; at a time limit there is no time for them."""
    return request.report and not summary.left and bundle_facts() is None


def _experiment(request: Request) -> Experiment:
    if request.resume is not None:
        # The run's own copy: the file may have been changed since.
        read_manifest(request.resume)
        return load_experiment(request.resume / "experiment.yaml")
    return load_experiment(find_experiment(request.experiment, EXPERIMENTS))


def _absent(experiment: Experiment) -> dict[str, str]:
    """The systems that this machine has not, with the reason: GVirtuS is not the testbed's own."""
    names = [system.name for system in experiment.systems if system.is_gvirtus]
    if not names:
        return {}
    try:
        find_gvirtus()
    except TestbedError as error:
        return dict.fromkeys(names, error.what)
    return {}


def _run_directory(request: Request, experiment: Experiment) -> RunDirectory:
    source = provenance.commit()
    manifest = provenance.new_manifest(experiment, source)
    sitting = {key: manifest[key] for key in ("started_utc", "host", "gpu")}
    if request.resume is None:
        manifest["sittings"] = [{**sitting, "after_trials": 0}]
        run = RunDirectory.create(request.out, experiment.name, source.short)
        run.keep_specification(experiment.path)
        run.write_manifest(manifest)
        return run
    run = RunDirectory.resume(request.resume)
    before = run.manifest()
    conflicts = provenance.resume_conflicts(before, manifest)
    changed = [conflict for conflict in conflicts if conflict.startswith("commit.")]
    if conflicts and not (request.changed_source and conflicts == changed):
        run.close()
        raise TestbedError(
            f"{request.resume} was measured under other conditions: {'; '.join(conflicts)}",
            "start a run of its own; unlike conditions are never mixed"
            + (
                " (if what changed is no part of what is measured: --changed-source, recorded)"
                if conflicts == changed
                else ""
            ),
        )
    trials = len(read_lines(run.path / TRIALS))
    before.setdefault("sittings", []).append({**sitting, "after_trials": trials})
    if changed:
        entry = {**source.to_json(), "after_trials": trials, "utc": provenance.utc_now()}
        before.setdefault("continued_by", []).append(entry)
    run.write_manifest(before)
    return run


def _measure(
    experiment: Experiment,
    request: Request,
    run: RunDirectory,
    manifest: dict[str, Any],
    say: Say,
    show: Callable[[str, Report], None],
    deadline_s: float | None,
) -> Summary:
    """Measure placement after placement and show the tables of each; returns the counts of all."""
    say(f"results go to {run.path}")
    manifest["systems"] = {
        chosen.name: system(chosen.preset, chosen.overrides, chosen.name).switches()
        for chosen in experiment.systems
    }
    # What is prepared does not depend on the accelerator; kvm gives the plan with all trials.
    subjects: Subjects = prepare_subjects(
        make_plan(experiment, "kvm", request.placements), _record, say, run.references
    )
    manifest["workloads"] = described(subjects)
    native = _native_code(experiment, say)
    if native is not None:
        manifest["artifacts"]["native"] = {
            name: provenance.file_sha256(getattr(native, name))
            for name in ("worker", "library", "replay")
        }
        manifest["jail"] = _jail(native)
    summaries: list[Summary] = []
    for placement in PLACEMENTS:
        if not make_plan(experiment, "tcg", _only(placement, request.placements)):
            continue
        with contextlib.ExitStack() as stack:
            boot, accelerator, guests = None, "none", None
            placed: Subjects = subjects
            if placement != "process":
                assert native is not None, "native alone has no guest placement"
                guests = stack.enter_context(
                    _guests(placement, experiment, run, native, manifest, say)
                )
                boot, accelerator = guests.boot, guests.accelerator
            trials = make_plan(experiment, accelerator, [placement])
            if guests is not None:
                labels = dict.fromkeys(trial.workload.label for trial in trials)
                placed = guests.subjects({label: subjects[label] for label in labels})
            run.write_manifest(manifest)
            say(f"{placement} placement: {len(trials)} trials")
            executor = Executor(Settings(native, placed, accelerator, boot))
            summaries.append(run_trials(trials, executor, run, say, deadline_s))
        if summaries[-1].left:
            break
        if _wants_report(request, summaries[-1]):
            from testbed.analysis.report import tabulate

            show(placement, tabulate(run.path))
    return _total(summaries)


def _only(placement: str, wanted: Sequence[str] | None) -> tuple[str, ...]:
    return (placement,) if wanted is None or placement in wanted else ()


Subjects = Mapping[str, Subject]


@dataclass(frozen=True)
class _Guests:
    """What a placement with guests needs: `subjects` makes the workloads fit its accelerator."""

    boot: Callable[[str], RunningGuest]
    accelerator: str
    subjects: Callable[[Subjects], Subjects]


def _same(subjects: Subjects) -> Subjects:
    return subjects


@contextlib.contextmanager
def _guests(
    placement: str,
    experiment: Experiment,
    run: RunDirectory,
    native: NativeParts,
    manifest: dict[str, Any],
    say: Say,
) -> Iterator[_Guests]:
    """Build QEMU and the image, find the accelerator, and give what boots a guest by name."""
    # Imported here, so that process placement works where no guest ever could.
    from testbed.experiment.booted import BootedGuest, GuestParts
    from testbed.experiment.serving import Serving
    from testbed.machine.image import SERVER_PACKAGES, guest_image
    from testbed.machine.probe import accelerator, kvm_works
    from testbed.machine.qemu_build import qemu_bundle
    from testbed.machine.tap import tap_problem

    # The image first: where it cannot be made (no root), the longer build is not waited for.
    say("guest image: from the cache, or built (about 1 min)")
    image = guest_image()
    say("QEMU with the wormhole device: from the cache, or built (about 3 min)")
    qemu = qemu_bundle(say)
    kind = accelerator(qemu, image)
    manifest["accelerator"] = {"kind": kind, "reason": kvm_works(qemu, image).reason}
    manifest["tap"] = tap_problem() or "works"
    manifest["artifacts"] |= {
        "qemu": {
            "version": qemu.version,
            "source_sha256": qemu.source_sha256,
            "binary_sha256": provenance.file_sha256(qemu.binary),
            "artifact": qemu.binary.parent.name,
        },
        "image": {
            "suite": image.suite,
            "kernel_release": image.kernel_release,
            "packages_sha256": image.packages_sha256,
            "kernel_sha256": provenance.file_sha256(image.kernel),
            "driver_sha256": provenance.file_sha256(image.driver),
        },
    }
    parts = GuestParts(
        qemu=qemu,
        image=image,
        native=native,
        accelerator=kind,
        boot_timeout_s=float(experiment.boot_timeout_s),
        instrumented=experiment.instrumented,
        logs=run.path / "logs",
    )

    serving = None
    if placement == "server-vm":
        say("image of the server guest: from the cache, or built (about 3 min)")
        manifest["artifacts"]["server_image"] = {
            "packages_sha256": guest_image(SERVER_PACKAGES).packages_sha256
        }
        serving = Serving(
            native, qemu, kind, parts.boot_timeout_s, not parts.instrumented, parts.logs, say
        )
        parts = dataclasses.replace(parts, server_guest=serving.running)

    # A guest's name begins with its part's (plan.py).
    parts_here = [part for part in experiment.parts if placement in part.placements]
    needs = {part.name: part_needs(part) for part in parts_here}
    if any("share" in need for need in needs.values()):
        manifest["host_python"] = {"program": sys.executable, "version": platform.python_version()}

    def boot(name: str) -> RunningGuest:
        guest = BootedGuest(dataclasses.replace(parts, **needs[name.split("/")[0]]), name)
        with contextlib.suppress(TestbedError):
            manifest["guest"] = guest.info()
            if serving is not None:
                manifest["server_guest"] = serving.running().vm.guest.info()
            run.write_manifest(manifest)
        say(f"guest for {name}: up in {guest.boot_s:.0f} s ({kind.upper()})")
        return guest

    try:
        yield _Guests(boot, kind, serving.subjects if serving is not None else _same)
    finally:
        if serving is not None:
            serving.close()


def part_needs(part: Part) -> dict[str, Any]:
    """What of `GuestParts` a part decides.  Raises TestbedError if its workloads do not agree."""
    workloads = [find_workload(choice.name) for choice in part.workloads]
    backends = sorted({backend_of(workload) for workload in workloads})
    if len(backends) > 1:
        raise TestbedError(
            f"part `{part.name}` has workloads of {' and of '.join(backends)} for one guest",
            "give each a part of its own",
        )
    needs: dict[str, Any] = {"network": part.network, "backend": backends[0]}
    if any(uses_host_python(workload, part.form) for workload in workloads):
        needs["share"] = python_tree(sys.executable)
    return needs


def _native_code(experiment: Experiment, say: Say) -> NativeParts | None:
    """The native code, or None if every trial is a native application."""
    forwards = any(
        not (chosen.is_native or chosen.is_gvirtus)
        for part in experiment.parts
        for chosen in part.systems
    )
    if not forwards and all(part.form == "application" for part in experiment.parts):
        return None
    from testbed.machine.native_build import native_build

    say("native code: from the cache, or built (about 20 s)")
    return native_build()


def _jail(native: NativeParts) -> dict[str, Any] | None:
    """How far a worker's jail goes here, a GPU's files open or not; None if it cannot be told."""
    from testbed.machine.host_server import probe_jail
    from testbed.machine.opencl import opencl_is_a_gpus

    with contextlib.suppress(TestbedError):
        return probe_jail(native.worker, "on" if opencl_is_a_gpus() else "off")
    return None


def _record(bundle: Bundle) -> Recorded:
    """Record a workload's call stream in process placement, or take it from the cache."""
    from testbed.experiment.recording import record_bundle

    made = record_bundle(bundle)
    return recorded_file(made.path, made.calls)


def _mark(run: RunDirectory, manifest: dict[str, Any], state: str) -> None:
    manifest["state"] = state
    manifest["ended_utc"] = provenance.utc_now()
    with contextlib.suppress(TestbedError):
        run.write_manifest(manifest)


def _total(summaries: Sequence[Summary]) -> Summary:
    by_status: dict[str, int] = {}
    for summary in summaries:
        for status, count in summary.by_status.items():
            by_status[status] = by_status.get(status, 0) + count
    return Summary(
        ran=sum(summary.ran for summary in summaries),
        skipped=sum(summary.skipped for summary in summaries),
        by_status=by_status,
        left=sum(summary.left for summary in summaries),
    )
