"""What tinygrad does on a GPU, by the driver's API: `tinygrad_steps.py STEP`.

Lines that begin with `result` are the same in every run of one machine.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from pathlib import Path

RENDERERS = {"tinygrad_ptx": "PTX", "tinygrad_nvrtc": "CUDA"}
STEPS = 24
BATCH = 64


def find_nvrtc() -> None:
    """The compiler of PyTorch's wheels, where none is installed; it needs no device."""
    folders = [Path(entry) for entry in sys.path if entry.endswith("-packages")]
    found = [path for folder in folders for path in folder.glob("nvidia/*/lib/libnvrtc.so.1?")]
    if found:
        os.environ.setdefault("NVRTC_PATH", str(found[0]))


def train() -> None:
    """Two layers; from the third step on the whole step is one graph."""
    from tinygrad import Device, Tensor, TinyJit, nn

    print("result device", Device.DEFAULT, type(Device["CUDA"].renderer).__name__, flush=True)
    Tensor.manual_seed(1)
    first, second = nn.Linear(64, 128), nn.Linear(128, 10)
    parameters = nn.state.get_parameters([first, second])
    optimiser = nn.optim.SGD(parameters, lr=0.1, momentum=0.9)

    @TinyJit  # type: ignore[untyped-decorator]
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimiser.zero_grad()
        loss = second(first(x).relu()).sparse_categorical_crossentropy(y)
        loss.backward()
        optimiser.step()
        return loss.realize()

    inputs = Tensor.rand(8 * BATCH, 64).realize()
    labels = Tensor.randint(8 * BATCH, high=10).realize()
    Tensor.training = True  # what releases before 0.14 ask
    for number in range(STEPS):
        low = BATCH * (number % 8)
        x, y = (t[low : low + BATCH].contiguous().realize() for t in (inputs, labels))
        loss = step(x, y).item()
        print("result loss", number, struct.pack(">f", loss).hex(), flush=True)
    weights = b"".join(bytes(weight.data()) for weight in parameters)
    print("result weights", hashlib.sha256(weights).hexdigest()[:16])
    large = bytes(Tensor.rand(3, 1000, 1000).realize().data())
    print("result large", hashlib.sha256(large).hexdigest()[:16])


if __name__ == "__main__":
    os.environ["DEV"] = f"CUDA:{RENDERERS[sys.argv[1]]}"
    os.environ["CACHELEVEL"] = "0"  # what another run compiled is not taken
    os.environ["TRAINING"] = "1"
    find_nvrtc()
    train()
