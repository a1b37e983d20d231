"""Made-up experiments and events, as input for the tests of plan, runner, record and analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed import yamlfile
from testbed.experiment.experiment import Experiment, parse_experiment
from testbed.experiment.plan import Trial
from testbed.experiment.record import RunDirectory, TrialResult
from testbed.experiment.runner import TrialFiles, TrialOutcome
from testbed.experiment.systems import system

PRESETS = ("native", "wormhole", "wormhole-sync", "wormhole-notify", "tcp-sync")
FILE = Path("workloads/experiments/example.yaml")

TEXT = """\
name: example
doc: Two systems and native.
seed: 7
baseline: tcp-sync
systems:
  - native
  - wormhole
  - {name: wormhole-spin0, preset: wormhole, spin_us: 0}
  - tcp-sync
ladder: [tcp-sync, wormhole-spin0, wormhole]
parts:
  - form: replay
    workloads: [lenet-digits]
    placements: [process, guest]
    rounds: 3
    warmup_rounds: 1
  - form: application
    workloads: [{name: lenet-digits, batch: 8}]
    systems: [native, wormhole]
    placements: [process]
    rounds: 1
"""

#: Steps per second that the made-up trials run at.
SPEEDS = {"native": 120.0, "wormhole": 100.0, "wormhole-spin0": 50.0, "tcp-sync": 20.0}
STEPS = 6
JAIL = {"user": {"reached": True}, "network": {"reached": False, "how": "not permitted"}}
WARMUP_STEPS = 2


def example(text: str = TEXT) -> Experiment:
    return parse_experiment(yamlfile.parse(text, FILE), PRESETS)


def events_of(system: str, speed: float, calls: int = 200) -> list[dict[str, Any]]:
    """Events of a trial whose first two steps are slow and whose others run at `speed`."""
    events: list[dict[str, Any]] = [{"source": "runner", "event": "trial", "network": "loopback"}]
    t_ns = 1_000_000_000
    for step in range(STEPS):
        t_ns += int(1e9 / speed) if step >= WARMUP_STEPS else 5_000_000_000
        events.append({"source": "program", "event": "step", "step": step, "t_ns": t_ns})
        if system != "native":
            total = 5000 if step < WARMUP_STEPS else 5000 + calls * (step - WARMUP_STEPS + 1)
            events.append(
                {
                    "source": "stub",
                    "event": "mark",
                    "label": f"step {step}",
                    "api_calls": total,
                    "messages": total // 2,
                    "round_trips": total // 4,
                    "bytes_sent": total * 64,
                    "bytes_received": total * 8,
                    "notifications_sent": 3,
                }
            )
    events.append({"source": "client", "event": "exit", "user_s": 1.5, "system_s": 0.25})
    if system != "native":
        worker = {"user_s": 2.0, "system_s": 0.5, "spin_us": 50, "jail": {"parts": JAIL}}
        events.append({"source": "worker", **worker})
    return events


class FakeExecutor:
    """Runs nothing: gives made-up outcomes, or the status asked for by trial id."""

    def __init__(
        self,
        statuses: Mapping[str, str] | None = None,
        speeds: Mapping[str, float] | None = None,
    ) -> None:
        self.ran: list[str] = []
        self._speeds = dict(speeds or SPEEDS)
        self.closed = 0
        self._statuses = dict(statuses or {})

    def run(self, trial: Trial, files: TrialFiles) -> TrialOutcome:
        self.ran.append(trial.id)
        (files.log_directory / "program.log").write_text("made up\n")
        status = self._statuses.get(trial.id, "ok")
        # Every second round the made-up machine is a third slower for every system.
        slow = 1.0 if trial.round % 2 else 2.0 / 3.0
        events = events_of(trial.system.name, self._speeds[trial.system.name] * slow)
        return TrialOutcome(
            TrialResult(status, detail="" if status == "ok" else "made up", wall_s=0.5),
            events,
            extra={"warmup_steps": WARMUP_STEPS},
        )

    def close(self) -> None:
        self.closed += 1


def manifest_of(experiment: Experiment, systems: Sequence[str] = ()) -> dict[str, Any]:
    names = list(systems) or [system.name for system in experiment.systems]
    return {
        "experiment": {
            "name": experiment.name,
            "baseline": experiment.baseline,
            "ladder": list(experiment.ladder),
            "minimum_effect": experiment.minimum_effect,
            "systems": [{"name": name} for name in names],
            "parts": [
                {"workloads": [choice.label for choice in part.workloads]}
                for part in experiment.parts
            ],
        },
        "systems": {
            chosen.name: system(chosen.preset, chosen.overrides, chosen.name).switches()
            for chosen in experiment.systems
        },
        "workloads": {
            choice.label: {"name": choice.name, "batch": choice.batch or 64}
            for part in experiment.parts
            for choice in part.workloads
        },
        "accelerator": {"kind": "tcg"},
        "host": {"cpu_model": "Made-up processor", "cores": 2},
        "commit": {"short": "abcdef0", "dirty": False},
    }


def new_run(folder: Path, experiment: Experiment) -> RunDirectory:
    run = RunDirectory.create(folder, experiment.name, "abcdef0")
    run.write_manifest(manifest_of(experiment))
    return run
