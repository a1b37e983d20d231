"""Train a model with tinygrad on prepared data, or run it forward; one event line per step.

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
from tinygrad.nn.optim import SGD, AdamW

MOMENTUM = 0.1  # share of a batch in the statistics that inference uses
EPSILON = 1e-5
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
        data=job["data"]["source"],
        mode=job["mode"],
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
        session.load_batch(data, step)
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
    task = {key: job[key] for key in ("mode", "model", "optimiser", "batch")}
    return {
        "packages": json.dumps(job["packages"], sort_keys=True),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "task": hashlib.sha256(json.dumps(task, sort_keys=True).encode()).hexdigest(),
        **device_facts(),
    }


class Session:
    """The model's tensors and the step over them; picklable once the step was traced."""

    def __init__(self, job: dict[str, Any], data: PreparedData) -> None:
        self.layers: list[dict[str, Any]] = job["model"]["layers"]
        self.is_training: bool = job["mode"] == "training"
        self.parameters = {
            name: Tensor.zeros(*shape).contiguous().realize()
            for name, shape in data.parameter_shapes().items()
        }
        self.x = Tensor.zeros(*data.shape("x")[1:]).contiguous().realize()
        self.y = Tensor.zeros(*data.shape("y")[1:], dtype=dtypes.int32).contiguous().realize()
        self.memory: list[tuple[Tensor, float]] = []  # of the optimiser, with its first values
        self.optimiser = self.make_optimiser(job["optimiser"]) if self.is_training else None
        self.step: TinyJit[tuple[Tensor, ...]] = TinyJit(self.traced_step)
        self.results: tuple[Tensor, ...] = ()
        self.find_buffers()

    def make_optimiser(self, settings: dict[str, Any]) -> Any:
        """The optimiser over all that is learned; statistics of batches are not."""
        learned = [
            tensor
            for name, tensor in self.parameters.items()
            if not name.endswith((".mean", ".variance"))
        ]
        for tensor in learned:
            tensor.requires_grad = True
        if settings["kind"] == "sgd":
            made = SGD(
                learned,
                lr=settings["rate"],
                momentum=settings["momentum"],
                weight_decay=settings["weight_decay"],
            )
            self.memory = [(tensor, 0.0) for tensor in made.b]
        elif settings["kind"] == "adam":
            made = AdamW(learned, lr=settings["rate"], weight_decay=settings["weight_decay"])
            self.memory = [(tensor, 0.0) for tensor in (*made.m, *made.v)]
            self.memory += [(tensor, 1.0) for tensor in (made.b1_t, made.b2_t)]
        else:
            known = "sgd, adam"
            raise JobError(f"unknown optimiser {settings['kind']!r}; this program has: {known}")
        Tensor.realize(*(tensor for tensor, _ in self.memory), made.lr)
        return made

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("buffers", "results", "result_buffers"):
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.results = ()
        self.find_buffers()

    def find_buffers(self) -> None:
        """Look up the device buffers once; a lookup per step costs as much as a small kernel."""
        named = {**self.parameters, "x": self.x, "y": self.y}
        self.buffers: dict[str, Buffer] = {name: t._buffer() for name, t in named.items()}

    def traced_step(self) -> tuple[Tensor, ...]:
        """One step: the loss, and in inference what the model says of each sample."""
        Tensor.training = self.is_training
        network = Network(self.parameters, self.is_training)
        outputs = network.forward(self.layers, self.x)
        loss = outputs.sparse_categorical_crossentropy(self.y)
        if self.optimiser is None:
            Tensor.realize(loss, outputs)
            return loss, outputs
        self.optimiser.zero_grad()
        loss.backward()
        return (loss.realize(*self.optimiser.schedule_step(), *network.statistics),)

    def set_state(self, data: PreparedData) -> None:
        """Set the initial weights and clear what the optimiser remembers."""
        for name in self.parameters:
            self.buffers[name].copyin(data.bytes(name))
        for tensor, value in self.memory:
            buffer = tensor._buffer()
            buffer.copyin(memoryview(bytearray(struct.pack("<f", value) * (buffer.nbytes // 4))))

    def load_batch(self, data: PreparedData, step: int) -> None:
        """Copy the samples and labels of a step to the device."""
        self.buffers["x"].copyin(data.row("x", step % data.batches))
        self.buffers["y"].copyin(data.row("y", step % data.batches))

    def run(self, loss: bytearray) -> None:
        """Run one step and store the loss, a little-endian float32, in `loss`."""
        results = self.step()
        if not self.results or results[0] is not self.results[0]:
            self.results = results
            self.result_buffers = [
                (tensor._buffer(), bytearray(tensor._buffer().nbytes)) for tensor in results
            ]
        for buffer, values in self.result_buffers:
            buffer.copyout(memoryview(values))
        loss[:] = self.result_buffers[0][1]


class Network:
    """The layers at work on a batch; `statistics` are to be realised with the step."""

    def __init__(self, parameters: dict[str, Tensor], is_training: bool) -> None:
        self.parameters = parameters
        self.is_training = is_training
        self.statistics: list[Tensor] = []

    def forward(self, layers: list[dict[str, Any]], x: Tensor, path: str = "") -> Tensor:
        """Apply the layers in order; what layer i owns is named `i.weight`, `i.bias`, ..."""
        for index, layer in enumerate(layers):
            apply = getattr(self, f"apply_{layer['kind']}", None)
            if apply is None:
                raise JobError(f"layer {path}{index} has the unknown kind {layer['kind']!r}")
            x = apply(layer, x, f"{path}{index}")
        return x

    def own(self, name: str, suffix: str = "weight") -> Tensor:
        """What a layer owns."""
        return self.parameters[f"{name}.{suffix}"]

    def bias(self, name: str) -> Tensor | None:
        """The layer's bias, if it has one."""
        return self.parameters.get(f"{name}.bias")

    def apply_conv(self, layer: dict[str, Any], x: Tensor, name: str) -> Tensor:
        stride, padding = layer["stride"], layer["padding"]
        return x.conv2d(self.own(name), self.bias(name), stride=stride, padding=padding)

    def apply_linear(self, layer: dict[str, Any], x: Tensor, name: str) -> Tensor:
        return x.linear(self.own(name).transpose(), self.bias(name))

    def apply_pool(self, layer: dict[str, Any], x: Tensor, name: str) -> Tensor:
        window = (layer["size"], layer["size"])
        pooled = x.max_pool2d if layer["how"] == "max" else x.avg_pool2d
        return pooled(window, stride=layer["stride"], padding=layer["padding"])

    def apply_activation(self, layer: dict[str, Any], x: Tensor, name: str) -> Tensor:
        return getattr(x, layer["function"])()

    def apply_flatten(self, layer: dict[str, Any], x: Tensor, name: str) -> Tensor:
        return x.flatten(1)

    def apply_mean(self, layer: dict[str, Any], x: Tensor, name: str) -> Tensor:
        return x.mean(axis=(2, 3)) if x.ndim == 4 else x.mean(axis=1)

    def apply_residual(self, layer: dict[str, Any], x: Tensor, name: str) -> Tensor:
        body = self.forward(layer["body"], x, f"{name}.body.")
        return body + self.forward(layer["shortcut"], x, f"{name}.shortcut.")

    def apply_batchnorm(self, layer: dict[str, Any], x: Tensor, name: str) -> Tensor:
        mean, variance = self.own(name, "mean"), self.own(name, "variance")
        if self.is_training:
            batch_mean = x.mean(axis=(0, 2, 3))
            centred = x - batch_mean.detach().reshape(1, -1, 1, 1)
            batch_variance = (centred * centred).mean(axis=(0, 2, 3))
            for kept, of_batch in ((mean, batch_mean), (variance, batch_variance)):
                kept.assign((1 - MOMENTUM) * kept + MOMENTUM * of_batch.detach())
                self.statistics.append(kept)
            mean, variance = batch_mean, batch_variance
        return x.batchnorm(self.own(name), self.bias(name), mean, (variance + EPSILON).rsqrt())

    def apply_layernorm(self, layer: dict[str, Any], x: Tensor, name: str) -> Tensor:
        return x.layernorm(eps=EPSILON) * self.own(name) + self.own(name, "bias")

    def apply_sequence(self, layer: dict[str, Any], x: Tensor, name: str) -> Tensor:
        """A batch of images as one of sequences: of rows, or of pixels."""
        if layer["of"] == "rows":
            return x.permute(0, 2, 1, 3).flatten(2)
        return x.flatten(2).transpose(1, 2)

    def apply_positions(self, layer: dict[str, Any], x: Tensor, name: str) -> Tensor:
        return x + self.own(name)

    def apply_attention(self, layer: dict[str, Any], x: Tensor, name: str) -> Tensor:
        batch, length, features = x.shape
        three = x.linear(self.own(name).transpose(), self.bias(name))
        parts = three.reshape(batch, length, 3, layer["heads"], features // layer["heads"])
        query, key, value = (parts[:, :, part].transpose(1, 2) for part in range(3))
        seen = query.scaled_dot_product_attention(key, value).transpose(1, 2)
        out_weight, out_bias = self.own(name, "out_weight"), self.own(name, "out_bias")
        return seen.reshape(batch, length, features).linear(out_weight.transpose(), out_bias)

    def apply_lstm(self, layer: dict[str, Any], x: Tensor, name: str) -> Tensor:
        """All states of one layer; the gates stand in the order input, forget, output, cell."""
        weight, recurrent = self.own(name).transpose(), self.own(name, "recurrent_weight")
        inputs = x.linear(weight, self.bias(name))
        states: list[Tensor] = []
        cell: Tensor | None = None
        for at in range(int(x.shape[1])):
            gates = inputs[:, at]
            if states:
                gates = gates + states[-1].linear(recurrent.transpose())
            enter, forget, leave, change = gates.chunk(4, dim=1)
            kept = enter.sigmoid() * change.tanh()
            cell = kept if cell is None else forget.sigmoid() * cell + kept
            states.append((leave.sigmoid() * cell.tanh()).contiguous())
        return Tensor.stack(*states, dim=1)

    def apply_last(self, layer: dict[str, Any], x: Tensor, name: str) -> Tensor:
        return x[:, -1]


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
