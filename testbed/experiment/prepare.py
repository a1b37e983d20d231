"""What a workload needs to run anywhere: program, data, initial weights and packages in one folder.

Everything is made once on the host, kept in the cache and shipped with its hash, so that no library
path of the machine that runs it decides what is computed: the order of the samples and the initial
weights come from Python's own generator (the same everywhere); see datasets.py for the images.

A bundle holds `job.json`, `data.safetensors`, the program, `site/` (unpacked wheels) and, if the
workload asks for it, `captured.bin`: the training step traced on this machine's accelerator.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from testbed.errors import TestbedError
from testbed.experiment import zoo
from testbed.experiment.client import kept_environment
from testbed.experiment.data import Data, describe, fingerprint
from testbed.experiment.events import Trajectory, read_events, read_pattern
from testbed.experiment.workload import WORKLOADS, Command, Model, Package, Workload
from testbed.machine.artifacts import artifact, artifact_key, cache_dir, log_path, run_logged
from testbed.machine.native_build import COMPILE_LIMIT_S, COMPILER, compiler_version
from testbed.machine.opencl import native_variables
from testbed.machine.prebuilt import prebuilt
from testbed.root import ROOT

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PROGRAM = WORKLOADS / "programs" / "train_tinygrad.py"
WEIGHTS_AT_ONCE = 1 << 20
READY_FACTS = "facts.json"  # of a workload in an offline bundle: key and hash of its data

DOWNLOAD_TIMEOUT_S = 300.0
COMPILE_TIMEOUT_S = 300.0
COMPILE_FLAGS = ("-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-pthread")
LIBRARIES = ("-l:libOpenCL.so.1", "-lm", "-ldl")
CONDITIONS_TIMEOUT_S = 120.0
TENSOR_BYTES_LIMIT = 1 << 30

_PLACEHOLDER = re.compile(r"\{(?:dir|steps|warmup_steps)\}")

Tensors = Mapping[str, tuple[str, tuple[int, ...], bytes]]


@dataclass(frozen=True)
class Bundle:
    """A prepared workload: a folder that can be copied anywhere and run there.

    `key` changes with anything that decides what is computed; `data_sha256` is empty for commands.
    """

    workload: Workload
    directory: Path
    key: str
    data_sha256: str

    def argv(self, directory: Path | PurePosixPath, python: str = "python3") -> list[str]:
        """The command line, with the bundle's copy at `directory` on the machine that runs it."""
        task = self.workload.task
        if isinstance(task, Command):
            values = {
                "{dir}": str(directory),
                "{steps}": str(self.workload.steps),
                "{warmup_steps}": str(self.workload.warmup_steps),
            }
            words = [_PLACEHOLDER.sub(lambda found: values[found[0]], word) for word in task.argv]
            return [
                python if word == "python3" and not at else word for at, word in enumerate(words)
            ]
        return [python, str(directory / PROGRAM.name), str(directory / "job.json")]

    def environment(self, directory: Path | PurePosixPath) -> dict[str, str]:
        """The variables that the program needs, beside those of the system under test."""
        # Without a word tinygrad takes any accelerator it finds, forwarded or not.
        device = {"DEV": "CL"} if isinstance(self.workload.task, Model) else {}
        return {
            "PYTHONPATH": str(directory / "site"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONNOUSERSITE": "1",
            "PYTHONHASHSEED": "0",
            **device,
            **dict(self.workload.environment),
        }


def prepare(workload: Workload, traced: bool = False) -> Bundle:
    """Make the bundle of a workload, or take it from the cache.

    With `traced` the bundle has no captured step even if the workload asks for one.  Making a
    captured step runs the program on the host's accelerator.  Raises TestbedError.
    """
    base = base_bundle(workload)
    if traced or not isinstance(workload.task, Model) or not workload.task.captured_step:
        return base
    captured = _captured_step(base)
    inputs: dict[str, str | bytes | Path] = {"base": base.key, "captured": captured}

    def build(directory: Path) -> None:
        _link_tree(base.directory, directory)
        _link(captured, directory / "captured.bin")
        job_path = directory / "job.json"
        job = json.loads(job_path.read_text(encoding="utf-8"))
        job["captured"] = {"file": "captured.bin", "sha256": _sha256(captured)}
        job_path.unlink()  # a hard link into the base bundle: replace it, never write into it
        job_path.write_text(json.dumps(job, indent=1), encoding="utf-8")

    directory = artifact(f"bundle-{workload.name}", inputs, build)
    return Bundle(workload, directory, artifact_key(inputs), base.data_sha256)


def reference(bundle: Bundle, kept: Path | None = None) -> Trajectory | None:
    """The trajectory of a native run on the host's accelerator, traced, not captured.

    That of a model is kept in the cache, keyed by the bundle and the accelerator.  A program has
    one if it is deterministic; what it printed is kept in the folder `kept`.  Raises TestbedError.
    """
    base = base_bundle(bundle.workload)
    if isinstance(base.workload.task, Command):
        return _command_reference(base, base.workload.task, kept)
    inputs = {"base": base.key, "conditions": json.dumps(conditions(base), sort_keys=True)}

    def build(directory: Path) -> None:
        output = directory / "events.jsonl"
        timeout_s = float(base.workload.timeout_s)
        run_native(base, output, timeout_s, log_path("reference", inputs))

    directory = artifact("reference", inputs, build)
    return read_events((directory / "events.jsonl").read_text(encoding="utf-8").splitlines())


def _command_reference(bundle: Bundle, task: Command, kept: Path | None) -> Trajectory | None:
    if not task.deterministic:
        return None
    copy = kept / f"{bundle.workload.name}-{bundle.key}.txt" if kept is not None else None
    if copy is not None and copy.is_file():
        return read_command(task, copy)
    with tempfile.TemporaryDirectory(prefix="wormhole-reference-") as folder:
        output = Path(folder) / "output"
        run_native(bundle, output, float(bundle.workload.timeout_s), Path(folder) / "log")
        trajectory = read_command(task, output)
        if copy is not None:
            shutil.copyfile(output, copy.with_suffix(".new"))
            copy.with_suffix(".new").replace(copy)
        return trajectory


def read_command(task: Command, output: Path) -> Trajectory:
    """The steps in what a program printed to a file; without a time where a pattern finds them."""
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    if task.step_pattern is None:
        return read_events(lines)
    return read_pattern([(0, line) for line in lines], task.step_pattern)


def run_native(
    bundle: Bundle, output: Path, timeout_s: float, log: Path, extra: Sequence[str] = ()
) -> None:
    """Run a bundle on the host with the vendor's own library; its standard output goes to a file.

    Raises TestbedError, with the last lines of its errors, if it fails or passes the limit.
    """
    argv = [*bundle.argv(bundle.directory, sys.executable), *extra]
    env = native_environment(bundle)
    # The shell-free way to send one stream elsewhere: the log gets errors, `output` the events.
    command = [sys.executable, "-c", _REDIRECT, str(output), *argv]
    run_logged(command, log, timeout_s, cwd=bundle.directory, env=env)


_REDIRECT = (
    "import os, sys; "
    "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644); "
    "os.dup2(fd, 1); os.execvp(sys.argv[2], sys.argv[2:])"
)


def native_environment(bundle: Bundle) -> dict[str, str]:
    """The environment of a native run: the host's own OpenCL (or the one chosen), no switches."""
    task = bundle.workload.task
    return {
        **kept_environment(),
        **native_variables(cuda=isinstance(task, Command) and task.api == "cuda"),
        **bundle.environment(bundle.directory),
        "POCL_CACHE_DIR": str(kernel_cache_seed(bundle.workload.name)),
    }


def kernel_cache_seed(workload: str) -> Path:
    """The folder where native runs of a workload leave the kernels that PoCL compiled.

    Workers start from a private copy of it, so that no trial measures the compiler: a folder for
    each workload, because a session that needs few kernels must not wait for a copy of all.
    """
    folder = cache_dir() / "pocl-seeds" / workload
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def data_tensors(model: Model, steps: int) -> Tensors:
    """All tensors of a job: `x` and `y` (batch, sample, ...) and the initial weights.

    There is a batch for every step; of a synthetic set no more than its samples fill, and the
    program begins again.  Raises TestbedError if they would be larger than the limit.
    """
    from testbed.experiment import datasets

    data = model.data
    batches = steps
    if data.samples:
        batches = min(steps, max(1, data.samples // model.batch))
    shape = (batches, model.batch, *data.shape)
    if math.prod(shape) * 4 > TENSOR_BYTES_LIMIT:
        raise TestbedError(
            f"{batches} batches of {model.batch} images of {data.shape} take "
            f"{math.prod(shape) * 4 >> 20} MiB (limit {TENSOR_BYTES_LIMIT >> 20})",
            "take fewer steps, a smaller batch or smaller images",
        )
    samples = datasets.load(data)
    order = sample_order(len(samples.labels), batches * model.batch, data.seed)
    weights = initial_weights(
        zoo.parameters(model.layers, data.shape, data.classes), model.weights_seed
    )
    return {
        "x": ("F32", shape, samples.images[order].astype("<f4").tobytes()),
        "y": ("I32", shape[:2], samples.labels[order].astype("<i4").tobytes()),
        **weights,
    }


def sample_order(samples: int, count: int, seed: int) -> list[int]:
    """`count` sample numbers: the whole set in a shuffled order, then again in another, ..."""
    generator = random.Random(seed)
    order: list[int] = []
    while len(order) < count:
        epoch = list(range(samples))
        generator.shuffle(epoch)
        order += epoch
    return order[:count]


def initial_weights(parameters: Mapping[str, zoo.Parameter], seed: int) -> Tensors:
    """Weights uniform with variance spread/fan-in (LeCun and others, 1998), the rest constant."""
    import numpy as np  # not at the top: a bundle's data are made already, and it has no NumPy

    generator = random.Random(seed)
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for name, parameter in parameters.items():
        count = math.prod(parameter.shape)
        if parameter.spread:
            bound = math.sqrt(3.0 * parameter.spread / math.prod(parameter.shape[1:]))
            parts = [
                ((2.0 * _uniform(generator, size) - 1.0) * bound).astype("<f4").tobytes()
                for size in _parts(count)
            ]
            raw = b"".join(parts)
        else:
            raw = np.full(count, parameter.value, "<f4").tobytes()
        tensors[name] = ("F32", parameter.shape, raw)
    return tensors


def _uniform(generator: random.Random, count: int) -> npt.NDArray[np.float64]:
    """What `count` calls of the generator's `random` would give, faster."""
    import numpy as np

    words = np.frombuffer(generator.randbytes(8 * count), "<u4").astype(np.float64)
    high, low = np.floor(words[0::2] / 32), np.floor(words[1::2] / 64)
    return (high * 2.0**26 + low) * 2.0**-53


def _parts(count: int) -> list[int]:
    """A number split into parts of a size that memory can bear."""
    whole, rest = divmod(count, WEIGHTS_AT_ONCE)
    return [WEIGHTS_AT_ONCE] * whole + [rest] * bool(rest)


def write_tensors(path: Path, tensors: Tensors) -> str:
    """Write tensors in the safetensors format; returns the file's SHA-256.

    The format: u64 length of the header, a JSON header, the raw little-endian data.
    """
    header: dict[str, object] = {}
    offset = 0
    for name, (dtype, shape, raw) in tensors.items():
        end = offset + len(raw)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as sink:
        sink.write(struct.pack("<Q", len(head)) + head)
        for _, _, raw in tensors.values():
            sink.write(raw)
    return _sha256(path)


def base_bundle(workload: Workload) -> Bundle:
    """The bundle without a captured step, which no accelerator is needed for.

    In an offline bundle (./inv bundle) it lies ready; TestbedError if that was made without it.
    """
    ready = prebuilt(ready_name(workload))
    if ready is not None:
        facts = json.loads((ready / READY_FACTS).read_text(encoding="utf-8"))
        return Bundle(workload, ready / "files", facts["key"], facts["data_sha256"])
    return _made_bundle(workload)


def ready_name(workload: Workload) -> str:
    """The part of an offline bundle that holds this workload, in this size."""
    # Files are named by their place in the checkout, which lies elsewhere on the other machine.
    parts = repr(_task_parts(workload)).replace(str(ROOT), "")
    return f"workloads/{workload.name}-{hashlib.sha256(parts.encode()).hexdigest()[:16]}"


def _made_bundle(workload: Workload) -> Bundle:
    task = workload.task
    inputs: dict[str, str | bytes | Path] = {
        "task": repr(_task_parts(workload)),
        "maker": Path(__file__),
    }
    if isinstance(task, Model):
        from testbed.experiment import datasets

        makers = {"zoo": Path(zoo.__file__), "data sets": Path(datasets.__file__)}
        inputs |= {"program": PROGRAM, **makers, **_data_content(task.data)}
    else:
        inputs |= {f"file {path.name}": path for path in (*task.files, *task.compile)}
        if task.compile:
            inputs["compiler"] = compiler_version()
    site = _site(workload.packages)
    if site is not None:
        inputs["packages"] = site.name

    def build(directory: Path) -> None:
        if site is not None:
            _link_tree(site, directory / "site")
        if isinstance(task, Model):
            shutil.copyfile(PROGRAM, directory / PROGRAM.name)
            _write_job(directory, workload, task)
        else:
            for path in task.files:
                shutil.copy(path, directory / path.name)
            for path in task.compile:
                _compile(path, directory / path.stem, log_path(f"bundle-{workload.name}", inputs))

    directory = artifact(f"bundle-{workload.name}", inputs, build)
    sha256 = ""
    if isinstance(task, Model):
        sha256 = _sha256(directory / "data.safetensors")
    return Bundle(workload, directory, artifact_key(inputs), sha256)


def _compile(source: Path, program: Path, log: Path) -> None:
    """Make a C file a program that runs in a guest, too: guests have the host's C library."""
    run_logged([COMPILER, *COMPILE_FLAGS, "-o", program, source, *LIBRARIES], log, COMPILE_LIMIT_S)


def _data_content(data: Data) -> dict[str, str]:
    """What says that a data set is what it was: hashes of its files, or of the package's scans."""
    if data.name == "digits":
        from testbed.experiment import datasets

        pixels, labels = datasets.digits()
        return {"digits": hashlib.sha256(pixels.tobytes() + labels.tobytes()).hexdigest()}
    return {f"data {path.name}": fingerprint(path) for path in data.files}


def _task_parts(workload: Workload) -> tuple[object, ...]:
    """What of a workload decides what is computed; limits and documentation do not."""
    return (
        workload.name,
        workload.task,
        workload.steps,
        workload.warmup_steps if isinstance(workload.task, Command) else None,
        workload.environment,
    )


def _write_job(directory: Path, workload: Workload, model: Model) -> None:
    tensors = data_tensors(model, workload.steps)
    sha256 = write_tensors(directory / "data.safetensors", tensors)
    optimiser = model.optimiser
    job = {
        "name": workload.name,
        "mode": model.mode,
        "model": {"layers": list(model.layers)},
        "optimiser": {
            "kind": optimiser.kind,
            "rate": optimiser.rate,
            "momentum": optimiser.momentum,
            "weight_decay": optimiser.weight_decay,
        },
        "batch": model.batch,
        "steps": workload.steps,
        "packages": {package.name: package.version for package in workload.packages},
        "data": {
            "file": "data.safetensors",
            "sha256": sha256,
            "source": describe(model.data),
        },
    }
    (directory / "job.json").write_text(json.dumps(job, indent=1), encoding="utf-8")


def _captured_step(base: Bundle) -> Path:
    """The file with the captured training step for this machine's accelerator."""
    inputs = {"base": base.key, "conditions": json.dumps(conditions(base), sort_keys=True)}

    def build(directory: Path) -> None:
        log = log_path("captured", inputs)
        extra = ["--capture", str(directory / "captured.bin")]
        run_native(base, directory / "output", float(base.workload.timeout_s), log, extra)

    return artifact("captured", inputs, build) / "captured.bin"


def conditions(bundle: Bundle) -> dict[str, str]:
    """The accelerator and the versions that a captured step or a reference is good for."""
    return _asked_conditions(
        (*bundle.argv(bundle.directory, sys.executable), "--conditions"),
        tuple(sorted(native_environment(bundle).items())),
    )


@functools.cache
def _asked_conditions(argv: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> dict[str, str]:
    try:
        done = subprocess.run(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CONDITIONS_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TestbedError(f"asking for the accelerator failed: {error}", "run `clinfo`") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise TestbedError(
            f"the workload's program cannot use the host's accelerator: {last}",
            "run `clinfo`; without a GPU install pocl-opencl-icd",
        )
    conditions: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return conditions


def _site(packages: Sequence[Package]) -> Path | None:
    """A folder with the unpacked and compiled wheels, or None if there are no packages."""
    if not packages:
        return None
    inputs: dict[str, str | bytes | Path] = {
        f"package {package.name}": f"{package.version} {package.sha256}" for package in packages
    }
    inputs["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"

    def build(directory: Path) -> None:
        log = log_path("python-packages", inputs)
        wheels = directory / ".wheels"
        wheels.mkdir()
        _download(packages, wheels, log)
        for wheel in sorted(wheels.iterdir()):
            _unpack(wheel, directory)
        shutil.rmtree(wheels)
        # Hash-based without checks: valid whatever times the copies in a guest get, and a guest
        # that emulates its processor would spend half a minute compiling.
        mode = ["--invalidation-mode", "unchecked-hash"]
        argv = [sys.executable, "-m", "compileall", "-q", *mode, "-s", str(directory), "-p", "/"]
        run_logged([*argv, "."], log, COMPILE_TIMEOUT_S, cwd=directory)

    return artifact("python-packages", inputs, build)


def _download(packages: Sequence[Package], wheels: Path, log: Path) -> None:
    """Fetch the wheels with pip, which checks their hashes."""
    pins = wheels.parent / ".pins.txt"
    pins.write_text(
        "".join(f"{p.name}=={p.version} --hash=sha256:{p.sha256}\n" for p in packages),
        encoding="utf-8",
    )
    argv = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary", ":all:", "--require-hashes"),
        *("-r", str(pins), "-d", str(wheels)),
    ]
    run_logged(argv, log, DOWNLOAD_TIMEOUT_S)
    pins.unlink()


def _unpack(wheel: Path, directory: Path) -> None:
    """Unpack a wheel that runs on any Python 3 of any machine."""
    if not wheel.name.endswith("-none-any.whl"):
        raise TestbedError(
            f"{wheel.name} holds native code and cannot be shipped to a guest",
            "pin a pure Python wheel (its name ends in -none-any.whl)",
        )
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)


def _link_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=_link, dirs_exist_ok=True)


def _link(source: str | Path, target: str | Path) -> None:
    """A hard link: artifacts never change; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
