"""What Triton does on a GPU, by the driver's API: `triton_steps.py STEP`.

Lines that begin with `result` are the same in every run of one machine.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile

import torch
import triton
from triton import language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

DEVICE = "cuda"


@triton.jit
def add(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * columns
    values = tl.load(x + row + at, at < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row + at, powers / tl.sum(powers, 0), at < columns)


@triton.jit
def multiply(a, b, c, size, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, size, DEPTH):
        depth = k + tl.arange(0, DEPTH)
        left = tl.load(a + rows[:, None] * size + depth[None, :])
        right = tl.load(b + depth[:, None] * size + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * size + columns[None, :], total)


@triton.jit
def double(source, target, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    target.store([row, column], source.load([row, column]) * 2)


@triton.jit
def add_one(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) + 1)


def digest(tensor: torch.Tensor) -> str:
    """Of the bytes of a tensor."""
    return hashlib.sha256(tensor.cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def kernels() -> None:
    """Additions, a softmax of rows, a product of matrices that wants much shared memory."""
    x, y = torch.rand(2, 98765).to(DEVICE)
    out = torch.empty_like(x)
    for _ in range(20):
        add[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    print("result add", torch.equal(out, x + y), digest(out), flush=True)
    rows = torch.rand(257, 781).to(DEVICE)
    out = torch.empty_like(rows)
    softmax[(257,)](rows, out, 781, BLOCK=1024)
    print("result softmax", torch.allclose(out, rows.softmax(1)), digest(out), flush=True)
    a, b = torch.rand(2, 512, 512).to(DEVICE, torch.float16)
    c = torch.empty(512, 512, device=DEVICE)
    made = multiply[(4, 4)](a, b, c, 512, BLOCK=128, DEPTH=64, num_warps=8, num_stages=3)
    close = torch.allclose(c, a.float() @ b.float(), rtol=1e-2)
    print("result multiply", close, made.metadata.shared > 49152, digest(c), flush=True)
    try:
        add[(1,)](torch.rand(8), y, out, 8, BLOCK=1024)
    except ValueError as error:
        print("result refused", "cpu tensor" in str(error))


def descriptors() -> None:
    """Tensor maps made on the host, and clusters of blocks."""
    x = torch.rand(256, 512).to(DEVICE)
    out = torch.empty_like(x)
    source, target = (TensorDescriptor.from_tensor(t, [64, 64]) for t in (x, out))
    double[(4, 8)](source, target, ROWS=64, COLUMNS=64)
    print("result descriptors", torch.equal(out, x * 2), digest(out), flush=True)
    add_one[(128,)](x, out, BLOCK=1024, num_ctas=2)
    print("result clusters", torch.equal(out, x + 1), digest(out), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="wormhole-compiled-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # what another run compiled is not taken
        print("triton", triton.__version__, flush=True)
        torch.manual_seed(1)
        {"triton": kernels, "descriptors": descriptors}[sys.argv[1]]()
