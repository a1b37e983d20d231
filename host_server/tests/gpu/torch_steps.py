"""What PyTorch does on a GPU, from an import to a convolution: `torch_steps.py STEP`.

Lines that begin with `result` are the same in every run of one machine; times are not.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import tempfile
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
BEGIN_S = time.monotonic()

import torch  # noqa: E402
from torch import nn  # noqa: E402

IMPORT_S = time.monotonic() - BEGIN_S
DEVICE = "cuda"


def digest(*tensors: torch.Tensor) -> str:
    """Of the bytes of tensors."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()[:16]


def copies() -> None:
    """Bandwidth of both ways, of pageable and pinned memory, best of some."""
    count = 64 << 20
    device = torch.empty(count, device=DEVICE)
    for kind in ("pageable", "pinned"):
        host = torch.rand(count, pin_memory=kind == "pinned")
        for way in ("in", "out"):
            best_s = float("inf")
            for _ in range(6):
                torch.cuda.synchronize()
                begin_s = time.monotonic()
                if way == "in":
                    device.copy_(host, non_blocking=True)
                else:
                    host.copy_(device, non_blocking=True)
                torch.cuda.synchronize()
                best_s = min(best_s, time.monotonic() - begin_s)
            print(f"{kind} {way}: {count * 4 / best_s / 1e9:.2f} GB/s", flush=True)
        print("result copies", torch.equal(device.cpu(), host))


def compiled() -> None:
    """PyTorch's own compiler, which writes kernels for Triton: forward and backward."""
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10))
    model = model.to(DEVICE)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_of = torch.compile(lambda x, y: nn.functional.cross_entropy(model(x), y))
    x, y = torch.rand(512, 64).to(DEVICE), torch.randint(10, (512,)).to(DEVICE)
    for number in range(16):
        low = 64 * (number % 8)
        optimiser.zero_grad()
        loss = loss_of(x[low : low + 64], y[low : low + 64])
        loss.backward()
        optimiser.step()
        print("result loss", number, struct.pack(">f", loss.item()).hex(), flush=True)
    print("result weights", digest(*model.parameters()))


def run(step: str) -> None:
    """One step of the list in run_gpu.py."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    print(f"import {IMPORT_S:.2f} s", torch.__version__, flush=True)
    print("result available", torch.cuda.is_available(), torch.cuda.device_count(), flush=True)
    if step == "import":
        print("result name", torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0))
        return
    if step == "tensors":
        x = torch.arange(1000, device=DEVICE, dtype=torch.float32)
        print("result sum", (x * 2 + 1).sum().item(), flush=True)
        print("result bytes", digest(x.cpu(), torch.rand(100, device=DEVICE), x.sort()[0]))
        pinned = torch.arange(1 << 20).pin_memory()
        print("result pinned", pinned.to(DEVICE, non_blocking=True).sum().item())
        return
    if step == "matmul":
        a, b = torch.rand(512, 256).to(DEVICE), torch.rand(256, 128).to(DEVICE)
        print("result matmul", digest(a @ b), digest(a.bfloat16() @ b.bfloat16()))
        return
    if step == "linear":
        layer = nn.Linear(64, 32).to(DEVICE)
        y = layer(torch.rand(16, 64, device=DEVICE))
        y.sum().backward()
        print("result linear", digest(y, layer.weight.grad))
        return
    if step == "conv":
        layer = nn.Conv2d(3, 8, 3).to(DEVICE)
        y = layer(torch.rand(4, 3, 32, 32, device=DEVICE))
        y.sum().backward()
        print("result conv", digest(y, layer.weight.grad))
        return
    if step == "copies":
        copies()
        return
    if step == "compile":
        with tempfile.TemporaryDirectory(prefix="wormhole-compiled-") as folder:
            # What another run compiled is not taken.
            os.environ["TRITON_CACHE_DIR"] = os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            compiled()


if __name__ == "__main__":
    run(sys.argv[1])
