"""Train a model with tinygrad on prepared data, one event line on standard output per step.

Needs Python's standard library and tinygrad, nothing else.  What to train is said by a job file
(see testbed/experiment/prepare.py), never by this program:

    python3 train_tinygrad.py JOB.json [--capture FILE | --conditions]

With `--capture` the training step is traced, pickled to FILE and the program ends: tracing costs
a slow machine most of a minute, and a job that names a captured step starts without it.  With
`--conditions` the program only says on what such a step depends.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import pickle
import platform
import resource
import struct
import sys
import time
from pathlib import Path
from typing import Any

from tinygrad import Device, Tensor, TinyJit, dtypes
from tinygrad.device import Buffer
from tinygrad.nn.optim import SGD

TRACED_CALLS = 2  # TinyJit runs once plainly, once capturing, and replays from then on


class JobError(Exception):
    """The job cannot be run as it stands."""


def main(arguments: list[str]) -> int:
    """Run the job named on the command line."""
    if not arguments or arguments[1:2] not in ([], ["--capture"], ["--conditions"]):
        print(f"usage: {Path(__file__).name} JOB.json [--capture FILE | --conditions]")
        return 2
    job_path = Path(arguments[0])
    try:
        job = json.loads(job_path.read_text(encoding="utf-8"))
        if arguments[1:] == ["--conditions"]:
            emit(**capture_conditions(job))
            return 0
        data = PreparedData(job_path.parent / job["data"]["file"], job["data"]["sha256"])
        if len(arguments) == 3:
            capture(job, data, Path(arguments[2]))
        else:
            train(job, job_path.parent, data)
    except JobError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def train(job: dict[str, Any], directory: Path, data: PreparedData) -> None:
    """Run all steps of the job, printing `start`, `step` and `end` events."""
    mark = load_mark()
    session, start_form = open_session(job, directory, data)
    session.set_state(data)
    emit(
        event="start",
        workload=job["name"],
        python=platform.python_version(),
        packages=job["packages"],
        device=device_facts(),
        data_sha256=data.sha256,
        start=start_form,
        batch=job["batch"],
        steps=job["steps"],
        t_ns=time.monotonic_ns(),
    )
    mark("ready")
    loss = bytearray(4)
    for step in range(job["steps"]):
        session.load_batch(data, step)
        session.run(loss)
        t_ns = time.monotonic_ns()
        mark(f"step {step}")
        value = struct.unpack("<f", loss)[0]
        emit(event="step", step=step, loss_bits=loss[::-1].hex(), loss=value, t_ns=t_ns)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    emit(
        event="end",
        steps=job["steps"],
        t_ns=time.monotonic_ns(),
        user_s=usage.ru_utime,
        system_s=usage.ru_stime,
    )


def capture(job: dict[str, Any], data: PreparedData, path: Path) -> None:
    """Trace the training step and write it, with the conditions under which it may be used."""
    session = Session(job, data)
    session.set_state(data)
    loss = bytearray(4)
    for step in range(TRACED_CALLS):
        session.load_batch(data, step % data.batches)
        session.run(loss)
    body = pickle.dumps(session, protocol=pickle.HIGHEST_PROTOCOL)
    head = json.dumps(capture_conditions(job)).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)


def open_session(job: dict[str, Any], directory: Path, data: PreparedData) -> tuple[Session, str]:
    """The captured step if the job has one that fits this machine, else a step to be traced."""
    captured = job.get("captured")
    if not captured:
        return Session(job, data), "traced"
    raw = (directory / captured["file"]).read_bytes()
    if hashlib.sha256(raw).hexdigest() != captured["sha256"]:
        raise JobError(f"{captured['file']} does not have the recorded SHA-256; deploy it again")
    (length,) = struct.unpack_from("<Q", raw)
    made_for = json.loads(raw[8 : 8 + length])
    here = capture_conditions(job)
    differing = sorted(key for key in here if here[key] != made_for.get(key))
    if differing:
        return Session(job, data), f"traced ({', '.join(differing)} differ from the captured step)"
    session = pickle.loads(raw[8 + length :])
    if not isinstance(session, Session):
        raise JobError(f"{captured['file']} does not hold a captured step")
    return session, "captured"


def capture_conditions(job: dict[str, Any]) -> dict[str, str]:
    """What must be equal for a captured step to be the step that tracing would give here."""
    task = {key: job[key] for key in ("model", "optimiser", "batch")}
    return {
        "packages": json.dumps(job["packages"], sort_keys=True),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "task": hashlib.sha256(json.dumps(task, sort_keys=True).encode()).hexdigest(),
        **device_facts(),
    }


class Session:
    """The model's tensors and the training step over them; picklable once the step was traced."""

    def __init__(self, job: dict[str, Any], data: PreparedData) -> None:
        self.layers: list[dict[str, Any]] = job["model"]["layers"]
        self.parameters = {
            name: Tensor.zeros(*shape).contiguous().realize()
            for name, shape in data.parameter_shapes().items()
        }
        self.x = Tensor.zeros(*data.shape("x")[1:]).contiguous().realize()
        self.y = Tensor.zeros(*data.shape("y")[1:], dtype=dtypes.int32).contiguous().realize()
        optimiser = job["optimiser"]
        if optimiser["kind"] != "sgd":
            raise JobError(f"unknown optimiser {optimiser['kind']!r}; this program has: sgd")
        for tensor in self.parameters.values():
            tensor.requires_grad = True
        self.optimiser = SGD(
            list(self.parameters.values()),
            lr=optimiser["rate"],
            momentum=optimiser["momentum"],
            weight_decay=optimiser["weight_decay"],
        )
        Tensor.realize(*self.optimiser.b, self.optimiser.lr)
        self.step: TinyJit[Tensor] = TinyJit(self.traced_step)
        self.result: Tensor | None = None
        self.find_buffers()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("buffers", "result", "result_buffer"):
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.result = None
        self.find_buffers()

    def find_buffers(self) -> None:
        """Look up the device buffers once; a lookup per step costs as much as a small kernel."""
        named = {**self.parameters, "x": self.x, "y": self.y}
        self.buffers: dict[str, Buffer] = {name: t._buffer() for name, t in named.items()}

    def traced_step(self) -> Tensor:
        """One step of training: forward, backward, update; returns the loss."""
        Tensor.training = True
        self.optimiser.zero_grad()
        loss = forward(self.layers, self.parameters, self.x).sparse_categorical_crossentropy(self.y)
        loss.backward()
        return loss.realize(*self.optimiser.schedule_step())

    def set_state(self, data: PreparedData) -> None:
        """Set the initial weights and clear the momentum."""
        for name in self.parameters:
            self.buffers[name].copyin(data.bytes(name))
        for tensor in self.optimiser.b:
            buffer = tensor._buffer()
            buffer.copyin(memoryview(bytearray(buffer.nbytes)))

    def load_batch(self, data: PreparedData, step: int) -> None:
        """Copy the samples and labels of a step to the device."""
        self.buffers["x"].copyin(data.row("x", step))
        self.buffers["y"].copyin(data.row("y", step))

    def run(self, loss: bytearray) -> None:
        """Run one step and store the loss, a little-endian float32, in `loss`."""
        result = self.step()
        if result is not self.result:
            self.result, self.result_buffer = result, result._buffer()
        self.result_buffer.copyout(memoryview(loss))


def forward(layers: list[dict[str, Any]], parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    """Apply the layers in order; parameters of layer i are named `i.weight` and `i.bias`."""
    for index, layer in enumerate(layers):
        kind = layer["kind"]
        weight, bias = parameters.get(f"{index}.weight"), parameters.get(f"{index}.bias")
        if kind == "conv" and weight is not None:
            padding = layer["padding"]
            x = x.conv2d(weight, bias, stride=layer["stride"], padding=padding)
        elif kind == "linear" and weight is not None:
            x = x.linear(weight.transpose(), bias)
        elif kind == "pool":
            window = (layer["size"], layer["size"])
            pooled = x.max_pool2d if layer["how"] == "max" else x.avg_pool2d
            x = pooled(window, stride=layer["stride"])
        elif kind == "activation":
            x = getattr(x, layer["function"])()
        elif kind == "flatten":
            x = x.flatten(1)
        else:
            raise JobError(f"layer {index} of the model has the unknown kind {kind!r}")
    return x


class PreparedData:
    """A file of tensors in the safetensors format: u64 header length, JSON header, raw data."""

    def __init__(self, path: Path, sha256: str) -> None:
        self.raw = bytearray(path.read_bytes())  # tinygrad takes addresses of writable memory only
        self.sha256 = hashlib.sha256(self.raw).hexdigest()
        if self.sha256 != sha256:
            raise JobError(f"{path} has SHA-256 {self.sha256}, the job says {sha256}")
        (length,) = struct.unpack_from("<Q", self.raw)
        self.entries = json.loads(self.raw[8 : 8 + length])
        self.entries.pop("__metadata__", None)
        self.view = memoryview(self.raw)[8 + length :]
        self.batches: int = self.shape("x")[0]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor; `x` and `y` have the step as their first axis."""
        return tuple(self.entries[name]["shape"])

    def bytes(self, name: str) -> memoryview:
        """The data of a tensor."""
        begin, end = self.entries[name]["data_offsets"]
        return self.view[begin:end]

    def row(self, name: str, index: int) -> memoryview:
        """The data of one step."""
        whole = self.bytes(name)
        size = len(whole) // self.batches
        return whole[index * size : (index + 1) * size]

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every initial weight."""
        return {name: self.shape(name) for name in self.entries if name not in ("x", "y")}


def device_facts() -> dict[str, str]:
    """The accelerator as tinygrad sees it."""
    device = Device[Device.DEFAULT]
    facts = {"device": Device.DEFAULT}
    for name in ("device_name", "driver_version"):
        facts[name] = str(getattr(device, name, ""))
    return facts


def load_mark() -> Any:
    """The forwarding library's mark function, or nothing if the program runs without it."""
    library = os.environ.get("WORMHOLE_MARK_LIB")
    if not library:
        return lambda label: None
    function = ctypes.CDLL(library).wormhole_mark
    function.argtypes = [ctypes.c_char_p]
    function.restype = None
    return lambda label: function(label.encode())


def emit(**fields: Any) -> None:
    """Print one event line."""
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
