"""Train models with PyTorch on a GPU; one event line per step, which is several optimiser steps.

    python3 train_torch.py MODEL STEPS WARMUP [--batch N] [--bf16]
    python3 train_torch.py --legs NAME=MODEL[/BATCH][/bf16][/inference]:WARMUP+STEPS ...

PyTorch itself is the machine's own and unmodified.  Data and weights come from a seed on the host's
processor; the batch stays on the device, so that a step is kernels, not copies.  The loss is looked
at once a step: between two looks nothing waits, as in a program that logs now and then.

With `--legs` one process trains several models one after another, since importing PyTorch takes
longer than most of them need.  A leg begins with an event `leg`; its first optimiser step, where
kernels are loaded and algorithms chosen, is timed by itself.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import json
import os
import re
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

BEGIN_NS = time.monotonic_ns()

import torch  # noqa: E402
from torch import nn  # noqa: E402

IMPORT_NS = time.monotonic_ns() - BEGIN_NS
SEED = 2020
INNER = 5  # optimiser steps in a step
RATE = 0.001  # small: a thousand steps on one batch must not end in infinities
DEVICE = "cuda"
CLASSES = 10


def emit(**event: object) -> None:
    """One line of the course of the training."""
    print(json.dumps(event), flush=True)


def marker() -> Callable[[str], None]:
    """What puts a boundary into our library's counters; nothing where it is not loaded."""
    path = os.environ.get("WORMHOLE_MARK_LIB")
    if not path:
        return lambda label: None
    library = ctypes.CDLL(path)
    return lambda label: library.wormhole_mark(label.encode())


class Sequence(nn.Module):  # type: ignore[misc]  # where PyTorch is missing
    """An LSTM, or an encoder of transformers, and a classifier of its last position."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind == "lstm":
            self.body: nn.Module = nn.LSTM(64, 256, 2, batch_first=True)
        else:
            layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(256, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        y = self.body(x)
        return self.head((y[0] if self.kind == "lstm" else y)[:, -1])


def lenet() -> nn.Module:
    """LeNet-5 on 28x28, with today's activations."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5)),
        *(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES)),
    )


def alexnet() -> nn.Module:
    """AlexNet without dropout, whose numbers would come from the device."""
    features: list[nn.Module] = []
    for into, out, size, stride, pad, pool in (
        (3, 64, 11, 4, 2, True),
        (64, 192, 5, 1, 2, True),
        (192, 384, 3, 1, 1, False),
        (384, 256, 3, 1, 1, False),
        (256, 256, 3, 1, 1, True),
    ):
        features += [nn.Conv2d(into, out, size, stride, pad), nn.ReLU()]
        features += [nn.MaxPool2d(3, 2)] if pool else []
    return nn.Sequential(
        *features,
        *(nn.Flatten(), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(), nn.Linear(4096, 4096)),
        *(nn.ReLU(), nn.Linear(4096, CLASSES)),
    )


class Block(nn.Module):  # type: ignore[misc]  # where PyTorch is missing
    """A residual block: two 3x3 convolutions, or a bottleneck of three."""

    def __init__(self, into: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        out = width * 4 if bottleneck else width
        sizes = (
            [(into, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
            if bottleneck
            else [(into, width, 3, stride), (width, width, 3, 1)]
        )
        layers: list[nn.Module] = []
        for a, b, size, step in sizes:
            layers += [nn.Conv2d(a, b, size, step, size // 2, bias=False), nn.BatchNorm2d(b)]
            layers += [nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])
        self.same: nn.Module = nn.Identity()
        if stride != 1 or into != out:
            self.same = nn.Sequential(
                nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's sum."""
        return torch.relu(self.body(x) + self.same(x))


def resnet(counts: tuple[int, ...], bottleneck: bool) -> nn.Module:
    """ResNet of the given numbers of blocks."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    layers += [nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    into = 64
    for stage, count in enumerate(counts):
        width = 64 << stage
        for number in range(count):
            stride = 2 if stage > 0 and number == 0 else 1
            layers.append(Block(into, width, stride, bottleneck))
            into = width * 4 if bottleneck else width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, CLASSES)]
    return nn.Sequential(*layers)


#: Model, shape of a sample, batch.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "lenet": (lenet, (1, 28, 28), 64),
    "alexnet": (alexnet, (3, 224, 224), 128),
    "resnet18": (lambda: resnet((2, 2, 2, 2), False), (3, 32, 32), 128),
    "resnet50": (lambda: resnet((3, 4, 6, 3), True), (3, 224, 224), 64),
    "transformer": (lambda: Sequence("transformer"), (128, 256), 16),
    "lstm": (lambda: Sequence("lstm"), (50, 64), 64),
}


LEG = re.compile(r"([a-z0-9.-]+)=([a-z0-9]+)(?:/([0-9]+))?(/bf16)?(/inference)?:([0-9]+)\+([0-9]+)")


@dataclass(frozen=True)
class Leg:
    """One model at work: `steps` of which the first `warmup` are not measured."""

    name: str
    model: str
    batch: int
    bf16: bool
    inference: bool
    warmup: int
    steps: int


def parse_leg(text: str) -> Leg:
    """A leg as the command line gives it."""
    found = LEG.fullmatch(text)
    if found is None or found[2] not in MODELS:
        raise SystemExit(f"{text!r} is not NAME=MODEL[/BATCH][/bf16][/inference]:WARMUP+STEPS")
    batch = int(found[3] or MODELS[found[2]][2])
    warmup = int(found[6])
    kinds = bool(found[4]), bool(found[5])
    return Leg(found[1], found[2], batch, *kinds, warmup, warmup + int(found[7]))


class Training:
    """A model on the device with its batch; the same numbers in every process."""

    def __init__(self, leg: Leg) -> None:
        make, shape, _ = MODELS[leg.model]
        torch.manual_seed(SEED)
        model = make()
        data, labels = torch.rand(leg.batch, *shape), torch.randint(0, CLASSES, (leg.batch,))
        hashed = hashlib.sha256(data.numpy().tobytes() + labels.numpy().tobytes())
        self.digest = hashed.hexdigest()
        self.model, self.data, self.labels = model.to(DEVICE), data.to(DEVICE), labels.to(DEVICE)
        self.model.train(not leg.inference)
        self.bf16, self.inference = leg.bf16, leg.inference
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.9)
        self.loss_of = nn.CrossEntropyLoss()

    def optimise(self) -> torch.Tensor:
        """One optimiser step, or the way forward alone; the loss stays on the device."""
        self.optimizer.zero_grad()
        with (
            torch.set_grad_enabled(not self.inference),
            torch.autocast(DEVICE, torch.bfloat16, enabled=self.bf16),
        ):
            loss: torch.Tensor = self.loss_of(self.model(self.data), self.labels)
        if not self.inference:
            loss.backward()
            self.optimizer.step()
        return loss


def train(training: Training, steps: int, first: int, mark: Callable[[str], None]) -> None:
    """So many steps, numbered from `first` on."""
    for number in range(first, first + steps):
        for _ in range(INNER):
            loss = training.optimise()
        value = loss.item()
        t_ns = time.monotonic_ns()
        mark(f"step {number}")
        bits = struct.pack(">f", value).hex()
        emit(event="step", step=number, t_ns=t_ns, loss=value, loss_bits=bits)


def train_legs(legs: list[Leg], mark: Callable[[str], None]) -> None:
    """All legs, each with an event in front, and the times that a user waits for at the start."""
    mark("import")
    begin_ns = time.monotonic_ns()
    torch.zeros(1, device=DEVICE)
    torch.cuda.synchronize()
    mark("context")
    context_ns = time.monotonic_ns() - begin_ns
    emit(event="start", torch=torch.__version__, import_ns=IMPORT_NS, context_ns=context_ns)
    first = 0
    for leg in legs:
        training = Training(leg)
        torch.cuda.synchronize()
        mark(f"ready {leg.name}")
        begin_ns = time.monotonic_ns()
        training.optimise().item()
        first_ns = time.monotonic_ns() - begin_ns
        mark(f"first {leg.name}")
        emit(
            event="leg",
            leg=leg.name,
            first_step=first,
            steps=leg.steps,
            warmup_steps=leg.warmup,
            optimiser_steps=INNER,
            batch=leg.batch,
            mode="inference" if leg.inference else "training",
            data_sha256=training.digest,
            first_optimiser_step_ns=first_ns,
        )
        train(training, leg.steps, first, mark)
        first += leg.steps
        # The next model finds the device as this one did.
        del training
        gc.collect()
        torch.cuda.empty_cache()


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS, nargs="?")
    parser.add_argument("steps", type=int, nargs="?", default=0)
    parser.add_argument("warmup", type=int, nargs="?", default=0)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--legs", nargs="+", type=parse_leg, default=[])
    given = parser.parse_args()
    if bool(given.legs) == bool(given.model):
        parser.error("give either a model or legs")
    mark = marker()
    torch.use_deterministic_algorithms(True, warn_only=True)
    if given.legs:
        train_legs(given.legs, mark)
    else:
        batch = given.batch or MODELS[given.model][2]
        leg = Leg("", given.model, batch, given.bf16, False, given.warmup, given.steps)
        training = Training(leg)
        digest, version = training.digest, torch.__version__
        emit(event="start", data_sha256=digest, torch=version, batch=batch)
        mark("ready")
        train(training, given.steps, 0, mark)
    emit(event="end", device=torch.cuda.get_device_name(0))


if __name__ == "__main__":
    main()
