"""Train a model with PyTorch on a GPU; one event line per step, which is several optimiser steps.

    python3 train_torch.py MODEL STEPS WARMUP [--batch N] [--bf16]

PyTorch itself is the machine's own and unmodified.  Data and weights come from a seed on the host's
processor; the batch stays on the device, so that a step is kernels, not copies.  The loss is looked
at once a step: between two looks nothing waits, as in a program that logs now and then.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import struct
import time
from collections.abc import Callable

import torch
from torch import nn

SEED = 2020
INNER = 5  # optimiser steps in a step
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


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("steps", type=int)
    parser.add_argument("warmup", type=int)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--bf16", action="store_true")
    given = parser.parse_args()
    make, shape, batch = MODELS[given.model]
    batch = given.batch or batch
    mark = marker()
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = make()
    data, labels = torch.rand(batch, *shape), torch.randint(0, CLASSES, (batch,))
    digest = hashlib.sha256(data.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()
    emit(event="start", data_sha256=digest, torch=torch.__version__, batch=batch)
    model, data, labels = model.to(DEVICE), data.to(DEVICE), labels.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    mark("ready")
    for number in range(given.steps):
        for _ in range(INNER):
            optimizer.zero_grad()
            with torch.autocast(DEVICE, torch.bfloat16, enabled=given.bf16):
                loss = loss_of(model(data), labels)
            loss.backward()
            optimizer.step()
        value = loss.item()
        t_ns = time.monotonic_ns()
        mark(f"step {number}")
        bits = struct.pack(">f", value).hex()
        emit(event="step", step=number, t_ns=t_ns, loss=value, loss_bits=bits)
    emit(event="end", device=torch.cuda.get_device_name(0))


if __name__ == "__main__":
    main()
