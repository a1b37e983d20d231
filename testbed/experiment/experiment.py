"""The model of an experiment: which workloads run under which systems, where, and how often.

An experiment is a YAML file under `workloads/experiments/`:

    name: quick
    doc: What the experiment shows, in a sentence.
    seed: 2020
    baseline: tcp-sync
    systems:
      - native
      - wormhole
      - {name: wormhole-spin0, preset: wormhole, spin_us: 0}
      - tcp-sync
    ladder: [tcp-sync, wormhole-sync, wormhole]
    parts:
      - form: replay
        workloads: [lenet-digits]
        placements: [process, guest]
        rounds: 5
        warmup_rounds: 1
      - form: application
        workloads: [{name: lenet-digits, batch: 8, steps: 20}]
        placements: [process]
        rounds: 1

`instrument: breakdown` in a part runs each forwarded trial twice, interleaved: as it is, and once
more with the time of each call taken apart; only the former has a speed.  A part runs its workloads
under its systems (the experiment's, if it names none) once a round.

`network: user` in a part keeps its guests' TCP on QEMU's user network, `tap` demands TAP; `auto`,
the default, takes TAP where the machine allows it.  Trials record what they had.

`rivals: [tcp-spin50]` names other settings of the baseline: each workload, form and placement is
compared with whichever of them was fastest there, since no setting suits a system everywhere.

`other_ladders:` shows the same trials in other orders (`- steps: [tcp-sync, ...]`), since a factor
depends on what was switched before.  `experiments: [a1-training, ladder]` in place of systems and
parts takes those of other experiments together, each part with its own baseline and ladders.

An A/A experiment has one system under two names, and says how its rounds are cut into comparisons:

    systems: [{name: wormhole-a, preset: wormhole}, {name: wormhole-b, preset: wormhole}]
    same: {rounds: 5, calls: 400}

Every `rounds` rounds of a part are one comparison, and `calls` comparisons of as many rounds are
made with bench.call.  Whatever they find is a false alarm.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from testbed import yamlfile
from testbed.errors import TestbedError
from testbed.experiment.systems import PLACEMENTS, PRESETS, SPIN_US_MAX
from testbed.machine.tap import NETWORKS
from testbed.root import ROOT

EXPERIMENTS = ROOT / "workloads" / "experiments"

FORMS = ("application", "replay")
MODES = ("training", "inference")
INSTRUMENTS = ("breakdown",)
RESTARTS = ("round", "trial", "part")

ROUNDS_LIMIT = 1000
STEPS_LIMIT = 1_000_000
BATCH_LIMIT = 1 << 16
COMPARISONS_LIMIT = 100_000
ROUNDS_OF_SAME_MINIMUM = 3  # fewer give no interval
TIMEOUT_LIMIT_S = 24 * 3600

DEFAULT_TRIAL_TIMEOUT_S = 600
DEFAULT_BOOT_TIMEOUT_S = 180

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

#: Switches that an experiment may override in a system, with the values that each takes.
SWITCH_CHOICES: dict[str, tuple[str, ...]] = {
    "transport": ("shm", "tcp"),
    "notifications": ("adaptive", "always"),
}
SWITCH_FLAGS = ("oneway", "local")


@dataclass(frozen=True)
class SystemChoice:
    """A system of the comparison: a preset and the switches that differ from it."""

    name: str
    preset: str
    overrides: tuple[tuple[str, str | int | bool], ...] = ()

    @property
    def is_native(self) -> bool:
        """The application on the host with the vendor's library, no forwarding."""
        return self.preset == "native"

    @property
    def is_gvirtus(self) -> bool:
        """Forwarded by GVirtuS, which runs in process placement alone."""
        return self.preset == "gvirtus"


@dataclass(frozen=True)
class WorkloadChoice:
    """A workload by name or path; what else is given replaces the workload's own."""

    name: str
    batch: int | None = None
    steps: int | None = None
    mode: str | None = None

    @property
    def label(self) -> str:
        """A name that tells two variants of one workload apart."""
        words = [Path(self.name).stem if self.name.endswith(".yaml") else self.name]
        if self.batch is not None:
            words.append(f"b{self.batch}")
        if self.steps is not None:
            words.append(f"s{self.steps}")
        if self.mode is not None:
            words.append(self.mode)
        return "-".join(words)


@dataclass(frozen=True)
class Part:
    """One comparison of an experiment: a form, crossed with workloads, systems and placements.

    `instrument` adds to each forwarded trial one that is instrumented so and has no speed.
    """

    name: str
    form: str
    workloads: tuple[WorkloadChoice, ...]
    systems: tuple[SystemChoice, ...]
    placements: tuple[str, ...]
    rounds: int
    warmup_rounds: int
    instrument: str = ""
    network: str = "auto"
    baseline: str = ""
    rivals: tuple[str, ...] = ()
    ladders: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Same:
    """An A/A experiment: the rounds of one comparison, and the comparisons of bench.call."""

    rounds: int
    calls: int


@dataclass(frozen=True)
class Experiment:
    """An experiment file, checked.

    `instrumented` lets the guest's device count every notification exactly, which costs time: such
    a run checks counts and has no speeds.
    """

    path: Path
    name: str
    doc: str
    seed: int
    baseline: str
    rivals: tuple[str, ...]
    systems: tuple[SystemChoice, ...]
    ladder: tuple[str, ...]
    parts: tuple[Part, ...]
    restart_guest: str
    trial_timeout_s: int
    boot_timeout_s: int
    minimum_effect: float
    instrumented: bool
    same: Same | None
    sha256: str = field(repr=False, default="")

    def without(self, absent: Collection[str]) -> Experiment:
        """The same without some systems; a part that has no system left is left out, too.

        Raises TestbedError if one of them is what others are compared with.
        """
        for baseline in (self.baseline, *(part.baseline for part in self.parts)):
            if baseline in absent:
                raise TestbedError(
                    f"{self.name} compares with {baseline}, which this machine has not",
                    "choose another baseline",
                )
        parts = tuple(
            replace(
                part,
                systems=tuple(system for system in part.systems if system.name not in absent),
                rivals=_less(part.rivals, absent),
                ladders=tuple(_less(steps, absent) for steps in part.ladders),
            )
            for part in self.parts
        )
        return replace(
            self,
            systems=tuple(system for system in self.systems if system.name not in absent),
            ladder=_less(self.ladder, absent),
            parts=tuple(part for part in parts if part.systems),
        )


def _less(names: Sequence[str], absent: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in absent)


def load_experiment(path: Path, presets: Sequence[str] = tuple(PRESETS)) -> Experiment:
    """Read and check an experiment file; `presets` are the names of the known systems.

    Raises TestbedError naming file, line and key.
    """
    section = yamlfile.load(path)
    names = section.texts("experiments", None)
    if names is None:
        experiment = parse_experiment(section, presets)
        return replace(experiment, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    included = []
    for name in names:
        try:
            included.append(load_experiment(find_experiment(name, EXPERIMENTS), presets))
        except TestbedError as error:
            raise section.error(
                "experiments", f"has `{name}`: {error.what}", error.remedy
            ) from error
    experiment = _together(section, included)
    hashes = "".join(part.sha256 for part in included)
    digest = hashlib.sha256(path.read_bytes() + hashes.encode()).hexdigest()
    return replace(experiment, sha256=digest)


def _together(section: yamlfile.Section, included: Sequence[Experiment]) -> Experiment:
    """One experiment of several; the first gives what the file does not."""
    if not included:
        raise section.error("experiments", "is empty", "name at least one")
    systems: dict[str, SystemChoice] = {}
    for experiment in included:
        if experiment.instrumented or experiment.same is not None:
            raise section.error(
                "experiments",
                f"has `{experiment.name}`, which is of a kind of its own",
                "run it by itself",
            )
        for system in experiment.systems:
            if systems.setdefault(system.name, system) != system:
                raise section.error(
                    "experiments",
                    f"have two systems named `{system.name}` with other switches",
                    f"rename the one of `{experiment.name}`",
                )
    first = included[0]
    common = _common(section, tuple(systems), first)
    parts = tuple(part for experiment in included for part in experiment.parts)
    section.finish()
    _check_distinct(section, "experiments", parts)
    return replace(first, systems=tuple(systems.values()), parts=parts, **common)


def _check_distinct(section: yamlfile.Section, key: str, parts: Sequence[Part]) -> None:
    for index, part in enumerate(parts):
        if part.name in [other.name for other in parts[:index]]:
            raise section.error(key, f"has two parts named `{part.name}`", "name them apart")


def _common(
    section: yamlfile.Section, names: Sequence[str], first: Experiment | None = None
) -> dict[str, Any]:
    """What every experiment says of itself; `first` gives what is left out."""
    return {
        "path": section.path,
        "name": _name(section, "name"),
        "doc": section.text("doc", ""),
        "seed": section.integer("seed", minimum=0),
        "baseline": section.choice("baseline", names),
        "rivals": section.texts("rivals", (), allowed=names),
        "ladder": section.texts("ladder", (), allowed=names),
        "restart_guest": section.choice(
            "restart_guest", RESTARTS, first.restart_guest if first else "round"
        ),
        "trial_timeout_s": section.integer(
            "trial_timeout_s",
            first.trial_timeout_s if first else DEFAULT_TRIAL_TIMEOUT_S,
            minimum=1,
            maximum=TIMEOUT_LIMIT_S,
        ),
        "boot_timeout_s": section.integer(
            "boot_timeout_s",
            first.boot_timeout_s if first else DEFAULT_BOOT_TIMEOUT_S,
            minimum=1,
            maximum=TIMEOUT_LIMIT_S,
        ),
        "minimum_effect": section.number(
            "minimum_effect", first.minimum_effect if first else 0.02, minimum=0.0, maximum=1.0
        ),
    }


def parse_experiment(section: yamlfile.Section, presets: Sequence[str]) -> Experiment:
    """Build an Experiment from its YAML; see `load_experiment`."""
    systems = _systems(section, presets)
    names = [system.name for system in systems]
    common = _common(section, names)
    ladders = [common["ladder"]] if common["ladder"] else []
    for item in section.sections("other_ladders", ()):
        ladders.append(item.texts("steps", allowed=names))
        item.finish()
    instrumented = section.boolean("instrumented", False)
    parts = tuple(
        replace(
            _part(part, systems),
            baseline=common["baseline"],
            rivals=common["rivals"],
            ladders=tuple(ladders),
        )
        for part in section.sections("parts")
    )
    same = _same(section, systems, parts)
    section.finish()
    if not parts:
        raise section.error("parts", "is empty", "describe at least one part")
    _check_distinct(section, "parts", parts)
    return Experiment(systems=systems, parts=parts, instrumented=instrumented, same=same, **common)


def find_experiment(name_or_path: str, folder: Path) -> Path:
    """The file of an experiment given by path, or by name in `folder`.

    Raises TestbedError that lists what there is.
    """
    for candidate in (Path(name_or_path), folder / f"{name_or_path}.yaml"):
        if candidate.is_file():
            return candidate
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    raise TestbedError(
        f"there is no experiment `{name_or_path}` in {folder}",
        f"one of: {', '.join(known)}, or the path of a YAML file" if known else "give a path",
    )


def _systems(section: yamlfile.Section, presets: Sequence[str]) -> tuple[SystemChoice, ...]:
    systems: list[SystemChoice] = []
    for item in section.texts_or_sections("systems"):
        if isinstance(item, str):
            _check_preset(section, "systems", item, presets)
            system = SystemChoice(name=item, preset=item)
        else:
            system = _system(item, presets)
        if system.name in [other.name for other in systems]:
            raise section.error("systems", f"lists `{system.name}` twice", "name them apart")
        systems.append(system)
    if not systems:
        raise section.error("systems", "is empty", f"known: {', '.join(presets)}")
    return tuple(systems)


def _system(section: yamlfile.Section, presets: Sequence[str]) -> SystemChoice:
    name = _name(section, "name")
    preset = section.text("preset", name)
    _check_preset(section, "preset", preset, presets)
    overrides: list[tuple[str, str | int | bool]] = []
    for switch, allowed in SWITCH_CHOICES.items():
        word = section.choice(switch, allowed, None)
        if word is not None:
            overrides.append((switch, word))
    for switch in SWITCH_FLAGS:
        flag = section.boolean(switch, None)
        if flag is not None:
            overrides.append((switch, flag))
    spin_us = section.integer("spin_us", None, minimum=0, maximum=SPIN_US_MAX)
    if spin_us is not None:
        overrides.append(("spin_us", spin_us))
    section.finish()
    if name in presets and name != preset:
        raise section.error("name", f"`{name}` is the name of another preset", "choose another")
    if overrides and name in presets:
        raise section.error(
            "name", f"`{name}` would hide the preset of that name", f"call it `{name}-...`"
        )
    if overrides and preset == "native":
        raise section.error("preset", "native has no switches", "leave them out")
    return SystemChoice(name=name, preset=preset, overrides=tuple(overrides))


def _same(
    section: yamlfile.Section, systems: Sequence[SystemChoice], parts: Sequence[Part]
) -> Same | None:
    wanted = section.section("same", None)
    if wanted is None:
        return None
    same = Same(
        rounds=wanted.integer("rounds", minimum=ROUNDS_OF_SAME_MINIMUM, maximum=ROUNDS_LIMIT),
        calls=wanted.integer("calls", 0, minimum=0, maximum=COMPARISONS_LIMIT),
    )
    wanted.finish()
    if len(systems) != 2 or systems[0].is_native or _switches(systems[0]) != _switches(systems[1]):
        raise section.error(
            "same", "needs exactly two forwarded systems that differ in their names alone"
        )
    for part in parts:
        if part.rounds % same.rounds:
            raise section.error(
                "same",
                f"cannot cut the {part.rounds} rounds of part `{part.name}` into comparisons of"
                f" {same.rounds}",
                f"make it a multiple of {same.rounds}",
            )
    return same


def _switches(chosen: SystemChoice) -> tuple[str, tuple[tuple[str, str | int | bool], ...]]:
    return chosen.preset, tuple(sorted(chosen.overrides))


def _check_preset(section: yamlfile.Section, key: str, name: str, presets: Sequence[str]) -> None:
    if name not in presets:
        near = yamlfile.nearest(name, presets)
        remedy = f"did you mean `{near}`?" if near else f"known: {', '.join(presets)}"
        raise section.error(key, f"names the unknown system `{name}`", remedy)


def _part(section: yamlfile.Section, systems: Sequence[SystemChoice]) -> Part:
    form = section.choice("form", FORMS)
    part = Part(
        form=form,
        name=_name(section, "name", form),
        workloads=_workloads(section),
        systems=_part_systems(section, systems),
        placements=section.texts("placements", allowed=PLACEMENTS),
        rounds=section.integer("rounds", minimum=1, maximum=ROUNDS_LIMIT),
        warmup_rounds=section.integer("warmup_rounds", 0, minimum=0, maximum=ROUNDS_LIMIT),
        instrument=section.choice("instrument", INSTRUMENTS, ""),
        network=section.choice("network", NETWORKS, "auto"),
    )
    section.finish()
    if not part.placements:
        raise section.error("placements", "is empty", f"one of: {', '.join(PLACEMENTS)}")
    if set(part.placements) - {"process"} and all(system.is_native for system in part.systems):
        raise section.error("placements", "names guest for native alone", "native needs no guest")
    return part


def _part_systems(
    section: yamlfile.Section, systems: Sequence[SystemChoice]
) -> tuple[SystemChoice, ...]:
    wanted = section.texts("systems", None, allowed=[system.name for system in systems])
    if wanted is None:
        return tuple(systems)
    by_name = {system.name: system for system in systems}
    return tuple(by_name[name] for name in wanted)


def _workloads(section: yamlfile.Section) -> tuple[WorkloadChoice, ...]:
    found: list[WorkloadChoice] = []
    for item in section.texts_or_sections("workloads"):
        if isinstance(item, str):
            choice = WorkloadChoice(item)
        else:
            choice = WorkloadChoice(
                name=item.text("name"),
                batch=item.integer("batch", None, minimum=1, maximum=BATCH_LIMIT),
                steps=item.integer("steps", None, minimum=2, maximum=STEPS_LIMIT),
                mode=item.choice("mode", MODES, None),
            )
            item.finish()
        if choice in found:
            raise section.error("workloads", f"lists `{choice.label}` twice", "keep one of them")
        found.append(choice)
    if not found:
        raise section.error("workloads", "is empty", "name at least one workload")
    return tuple(found)


def _name(section: yamlfile.Section, key: str, default: Any = yamlfile.REQUIRED) -> str:
    """A name that is safe in paths and trial ids."""
    name: str = (
        section.text(key, default) if default is not yamlfile.REQUIRED else section.text(key)
    )
    if not _NAME.fullmatch(name):
        raise section.error(key, f"is `{name}`", "use a-z, 0-9, `.`, `_` and `-`, 64 at most")
    return name
