"""The model of a workload: what runs, on which data, what is measured and what must hold.

A workload is a YAML file in `workloads/`, of one of two kinds.  `model:` trains a model of the zoo
(or one written out as `layers:`); `command:` runs any program and reads its progress from what it
prints.  `workload_schema` gives the same rules to editors.

    python -m testbed.experiment.workload        write workloads/schema.json
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from testbed import yamlfile
from testbed.errors import TestbedError
from testbed.experiment import zoo
from testbed.experiment.data import DATA_SETS, DIGITS_CLASSES, Data, describe
from testbed.root import ROOT
from testbed.yamlfile import Section

WORKLOADS = ROOT / "workloads"

STEPS_LIMIT = 1_000_000
BATCH_LIMIT = 1 << 16
TIMEOUT_LIMIT_S = 24 * 3600
DEFAULT_TIMEOUT_S = 600
DIGIT_SIDE = 8
DIGIT_SCALE_LIMIT = 32
SIDE_LIMIT = 1024
CHANNELS_LIMIT = 64
CLASSES_LIMIT = 65536
SAMPLES_LIMIT = 1 << 20
DEFAULT_SAMPLES = 512
PATTERN_LIMIT = 1000

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
SHA256 = re.compile(r"[0-9a-f]{64}")
PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
VERSION = re.compile(r"[0-9][A-Za-z0-9.+!-]*")
METRIC = re.compile(r"[a-z][a-z0-9_]{0,63}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

TRAINER = "tinygrad"  # what workloads/programs/train_tinygrad.py imports
OPTIMISERS = ("sgd", "adam")
MODES = ("training", "inference")
APIS = ("opencl", "cuda")


@dataclass(frozen=True)
class Package:
    """A wheel from PyPI, pinned by version and hash, that is deployed beside the program."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Tolerance:
    """How far a loss may be from the reference: |a - b| <= absolute + relative * |b|."""

    absolute: float = 0.0
    relative: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Every bit must be equal."""
        return self.absolute == 0.0 and self.relative == 0.0


@dataclass(frozen=True)
class Optimiser:
    """Stochastic gradient descent, or Adam with its usual constants (no `momentum`)."""

    kind: str
    rate: float
    momentum: float
    weight_decay: float


@dataclass(frozen=True)
class Model:
    """A model at work: its layers (see zoo.py), its data, how it is trained.

    In `mode` inference the step goes forward alone, with the initial weights.  `weights_seed` seeds
    those.  With `captured_step` the step is traced once on the host and shipped, so that a slow
    guest need not trace it.
    """

    name: str
    layers: tuple[zoo.Layer, ...]
    data: Data
    mode: str
    optimiser: Optimiser
    batch: int
    weights_seed: int
    captured_step: bool


@dataclass(frozen=True)
class OwnMetric:
    """A figure that a program prints: the group `value` of the last line that `pattern` matches."""

    name: str
    unit: str
    pattern: str


@dataclass(frozen=True)
class Command:
    """Any program.  `{dir}` in its arguments is the folder where its `files` were put.

    Each C file of `compile` becomes a program of its name there, linked with OpenCL.  Without
    `step_pattern` the program prints event lines (see events.py); with it, each line that the
    regular expression matches is a step, its groups `step` and `loss` being the values.  The losses
    of a `deterministic` program must be those of a native run.  `api` is what it asks of the
    accelerator: opencl or cuda.  With `host_python` its `python3` is the host's own in guests, too.
    """

    argv: tuple[str, ...]
    files: tuple[Path, ...]
    step_pattern: str | None
    compile: tuple[Path, ...] = ()
    metrics: tuple[OwnMetric, ...] = ()
    deterministic: bool = False
    api: str = "opencl"
    host_python: bool = False


@dataclass(frozen=True)
class Workload:
    """A workload file, checked.  `steps` includes the `warmup_steps`, which are not measured."""

    path: Path
    name: str
    doc: str
    task: Model | Command
    steps: int
    warmup_steps: int
    tolerance: Tolerance
    packages: tuple[Package, ...]
    environment: tuple[tuple[str, str], ...]
    timeout_s: int
    sha256: str = field(repr=False, default="")

    def resized(
        self, batch: int | None = None, steps: int | None = None, mode: str | None = None
    ) -> Workload:
        """The same workload with another batch, number of steps or mode.

        Raises TestbedError if it has none, or if nothing would be left after the warm-up.
        """
        changed = self
        if batch is not None:
            changed = replace(changed, task=replace(changed._model("batch", batch), batch=batch))
        if mode is not None:
            changed = replace(changed, task=replace(changed._model("mode", mode), mode=mode))
        if steps is not None:
            if steps <= self.warmup_steps:
                raise TestbedError(
                    f"{self.path}: {steps} steps leave none after {self.warmup_steps} for warm-up",
                    f"ask for at least {self.warmup_steps + 1}",
                )
            changed = replace(changed, steps=steps)
        return changed

    def summary(self) -> str:
        """What the workload is, in a line: size of the model and where its data come from."""
        task = self.task
        if isinstance(task, Command):
            return f"{' '.join(task.argv)}, {self.steps} steps"
        owned = zoo.parameters(task.layers, task.data.shape, task.data.classes)
        numbers = sum(math.prod(parameter.shape) for parameter in owned.values())
        text = describe(task.data)["text"]
        return f"{numbers} parameters, {task.mode}, {self.steps} steps of {task.batch}, on {text}"

    def _model(self, key: str, value: object) -> Model:
        """The model, of which `key` shall become `value`."""
        if not isinstance(self.task, Model):
            raise TestbedError(
                f"{self.path}: `{self.name}` is a command and has no {key} to set to {value}",
                f"leave `{key}` out for this workload",
            )
        return self.task


def load_workload(path: Path) -> Workload:
    """Read and check a workload file.  Raises TestbedError naming file, line and key."""
    workload = parse_workload(yamlfile.load(path))
    return replace(workload, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def workload_names(folder: Path = WORKLOADS) -> list[str]:
    """The workloads there are, sorted."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def find_workload(name_or_path: str, folder: Path = WORKLOADS) -> Workload:
    """The workload given by the path of its file, or by name in `folder`.

    Raises TestbedError that lists what there is.
    """
    for candidate in (Path(name_or_path), folder / f"{name_or_path}.yaml"):
        if candidate.is_file():
            return load_workload(candidate)
    known = ", ".join(workload_names(folder)) or "none"
    raise TestbedError(
        f"there is no workload `{name_or_path}` in {folder}",
        f"known: {known}; or give the path of a YAML file",
    )


def parse_workload(section: Section) -> Workload:
    """Build a Workload from its YAML; see `load_workload`."""
    name = _matching(section, "name", NAME, "lower-case letters, digits, `.`, `_` and `-`")
    if section.path.stem != name:
        raise section.error("name", f"is `{name}` in {section.path.name}", "name both alike")
    doc = section.text("doc")
    task: Model | Command
    if ("model" in section) == ("command" in section):
        raise TestbedError(
            f"{section.where()}: a workload has either `model:` or `command:`",
            "say which of the two runs",
        )
    task = _model(section) if "model" in section else _command(section)
    steps = section.integer("steps", minimum=1, maximum=STEPS_LIMIT)
    warmup_steps = section.integer("warmup_steps", 0, minimum=0, maximum=STEPS_LIMIT)
    if warmup_steps >= steps:
        raise section.error(
            "warmup_steps", f"is {warmup_steps} of {steps} steps", "leave steps to be measured"
        )
    packages = tuple(_package(item) for item in section.sections("packages", ()))
    if isinstance(task, Model) and TRAINER not in [package.name for package in packages]:
        raise section.error("packages", f"lacks {TRAINER}", "a model is trained with it: pin it")
    environment = _environment(section)
    tolerance = _tolerance(section)
    timeout_s = section.integer("timeout_s", DEFAULT_TIMEOUT_S, minimum=1, maximum=TIMEOUT_LIMIT_S)
    section.finish()
    return Workload(
        path=section.path,
        name=name,
        doc=doc,
        task=task,
        steps=steps,
        warmup_steps=warmup_steps,
        tolerance=tolerance,
        packages=packages,
        environment=environment,
        timeout_s=timeout_s,
    )


def _model(section: Section) -> Model:
    data = _data(section.section("data"))
    inner = section.section("model")
    if ("name" in inner) == ("layers" in inner):
        raise section.error("model", "has either `name` or `layers`", f"zoo: {', '.join(zoo.ZOO)}")
    if "layers" in inner:
        name = "layers"
        layers = [zoo.read_layer(item) for item in inner.sections("layers")]
        if not 1 <= len(layers) <= zoo.LAYERS_LIMIT:
            raise inner.error("layers", f"must list 1 to {zoo.LAYERS_LIMIT} layers")
    else:
        name = inner.choice("name", tuple(zoo.ZOO))
        layers = zoo.ZOO[name](inner, data.classes)
    inner.finish()
    try:
        zoo.parameters(layers, data.shape, data.classes)
    except TestbedError as error:
        raise section.error("model", f"is not possible: {error.what}", error.remedy) from error
    return Model(
        name=name,
        layers=tuple(layers),
        data=data,
        mode=section.choice("mode", MODES, "training"),
        optimiser=_optimiser(section.section("optimiser")),
        batch=section.integer("batch", minimum=1, maximum=BATCH_LIMIT),
        weights_seed=section.integer("weights_seed", minimum=0),
        captured_step=section.boolean("captured_step", False),
    )


def _data(section: Section) -> Data:
    name = section.choice("set", DATA_SETS)
    seed = section.integer("seed", minimum=0)
    if name == "digits":
        data = _digits(section, seed)
    else:
        shape, classes = _shape(section), section.integer("classes", minimum=1)
        if classes > CLASSES_LIMIT:
            raise section.error("classes", f"is {classes}", f"it must be at most {CLASSES_LIMIT}")
        data = Data(name, seed, shape, classes)
    if name == "synthetic":
        samples = section.integer("samples", DEFAULT_SAMPLES, minimum=1, maximum=SAMPLES_LIMIT)
        data = replace(data, samples=samples)
    elif name == "idx":
        data = replace(data, files=(_path(section, "images"), _path(section, "labels")))
    elif name == "npz":
        arrays = (section.text("images"), section.text("labels"))
        data = replace(data, files=(_path(section, "file"),), arrays=arrays)
    elif name == "csv":
        column = section.integer("label", 0, minimum=0)
        data = replace(data, files=(_path(section, "file"),), label_column=column)
    section.finish()
    return data


def _digits(section: Section, seed: int) -> Data:
    size = section.integer(
        "size", DIGIT_SIDE, minimum=DIGIT_SIDE, maximum=DIGIT_SIDE * DIGIT_SCALE_LIMIT
    )
    if size % DIGIT_SIDE:
        raise section.error(
            "size", f"is {size}", f"the scans are {DIGIT_SIDE} wide: take a multiple of that"
        )
    return Data("digits", seed, (1, size, size), DIGITS_CLASSES)


def _shape(section: Section) -> tuple[int, ...]:
    shape = section.integers("shape")
    limits = (CHANNELS_LIMIT, SIDE_LIMIT, SIDE_LIMIT)
    if len(shape) != 3 or any(not 1 <= n <= m for n, m in zip(shape, limits, strict=True)):
        raise section.error(
            "shape",
            f"is {list(shape)}",
            f"write [channels, height, width], each at least 1 and at most {list(limits)}",
        )
    return shape


def _path(section: Section, key: str) -> Path:
    """A data file: absolute, below the home folder (`~`), or beside the workload."""
    path = section.path.parent / Path(section.text(key)).expanduser()
    if not path.is_file():
        raise section.error(key, f"names {path}, which is no file", "check the path")
    return path


def _optimiser(section: Section) -> Optimiser:
    kind = section.choice("kind", OPTIMISERS)
    momentum = section.number("momentum", 0.0, minimum=0.0, maximum=1.0) if kind == "sgd" else 0.0
    optimiser = Optimiser(
        kind=kind,
        rate=section.number("rate", minimum=0.0),
        momentum=momentum,
        weight_decay=section.number("weight_decay", 0.0, minimum=0.0),
    )
    section.finish()
    return optimiser


def _command(section: Section) -> Command:
    inner = section.section("command")
    argv = inner.texts("argv")
    if not argv or not argv[0]:
        raise inner.error("argv", "is empty", "write the program and its arguments as a list")
    files = _files(inner, "files")
    sources = _files(inner, "compile")
    for source in sources:
        if source.suffix != ".c":
            raise inner.error("compile", f"names {source.name}", "it takes C files (`.c`) alone")
    names = [*(path.name for path in files), *(path.stem for path in sources)]
    if len(set(names)) != len(names):
        raise inner.error("files", "has two files of one name", "they share a folder: rename one")
    pattern = inner.text("step_pattern", None)
    if pattern is not None:
        _check_pattern(inner, "step_pattern", pattern, ("step", "loss"))
    metrics = tuple(_own_metric(item) for item in inner.sections("metrics", ()))
    metric_names = [metric.name for metric in metrics]
    if len(set(metric_names)) != len(metric_names):
        raise inner.error("metrics", "has two of one name", "rename one")
    deterministic = inner.boolean("deterministic", False)
    api = inner.choice("api", APIS, "opencl")
    host_python = inner.boolean("host_python", False)
    if host_python and argv[0] != "python3":
        raise inner.error("host_python", f"runs {argv[0]}", "begin `argv` with python3")
    inner.finish()
    return Command(argv, files, pattern, sources, metrics, deterministic, api, host_python)


def _own_metric(section: Section) -> OwnMetric:
    metric = OwnMetric(
        name=_matching(section, "name", METRIC, "lower-case letters, digits and `_`"),
        unit=section.text("unit"),
        pattern=section.text("pattern"),
    )
    _check_pattern(section, "pattern", metric.pattern, ("value",))
    if "value" not in re.compile(metric.pattern).groupindex:
        raise section.error("pattern", "has no group `value`", "write it as (?P<value>...)")
    section.finish()
    return metric


def _files(section: Section, key: str) -> tuple[Path, ...]:
    """Files beside the workload; nothing outside that folder can be named."""
    found: list[Path] = []
    for text in section.texts(key, ()):
        relative = PurePosixPath(text)
        if relative.is_absolute() or ".." in relative.parts:
            raise section.error(key, f"names `{text}`", "give a path below the workload's folder")
        path = section.path.parent / relative
        if not path.is_file():
            raise section.error(key, f"names {path}, which is no file", "check the path")
        found.append(path)
    return tuple(found)


def _check_pattern(section: Section, key: str, pattern: str, allowed: tuple[str, ...]) -> None:
    """A regular expression whose named groups are among `allowed`."""
    if len(pattern) > PATTERN_LIMIT:
        raise section.error(key, f"is longer than {PATTERN_LIMIT} characters")
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise section.error(
            key, f"is no regular expression: {error}", "see Python's `re`"
        ) from error
    unknown = sorted(set(groups) - set(allowed))
    if unknown:
        known = " and ".join(f"`{name}`" for name in allowed)
        raise section.error(key, f"has the group `{unknown[0]}`", f"named groups: {known}")


def _package(section: Section) -> Package:
    package = Package(
        name=_matching(section, "name", PACKAGE, "a package name"),
        version=_matching(section, "version", VERSION, "one exact version, in quotes"),
        sha256=_matching(section, "sha256", SHA256, "the 64 hexadecimal digits of the wheel"),
    )
    section.finish()
    return package


def _environment(section: Section) -> tuple[tuple[str, str], ...]:
    variables = section.text_map("environment")
    for name in variables:
        if not VARIABLE.fullmatch(name):
            raise section.error("environment", f"has the name `{name}`", "not a variable's name")
        if name.startswith(("WORMHOLE_", "LD_", "OCL_ICD_")):
            raise section.error(
                "environment", f"sets `{name}`", "that one belongs to the system under test"
            )
    return tuple(sorted(variables.items()))


def _tolerance(section: Section) -> Tolerance:
    inner = section.section("tolerance", None)
    if inner is None:
        return Tolerance()
    tolerance = Tolerance(
        absolute=inner.number("absolute", 0.0, minimum=0.0),
        relative=inner.number("relative", 0.0, minimum=0.0, maximum=1.0),
    )
    inner.finish()
    return tolerance


def _matching(section: Section, key: str, pattern: re.Pattern[str], wanted: str) -> str:
    value = section.text(key)
    if not pattern.fullmatch(value):
        raise section.error(key, f"is `{value}`", f"it must be {wanted}")
    return value


def main() -> None:
    """Write the JSON schema for editors; unchanged content is not rewritten."""
    from testbed.experiment.workload_schema import schema_text

    path = WORKLOADS / "schema.json"
    text = schema_text()
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
