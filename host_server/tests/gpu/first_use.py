"""How long PyTorch takes until its first step, and what crosses.

    python3 -m host_server.tests.gpu.first_use [--systems wormhole,tcp-sync] [--without]

For machines with a GPU. A process of a new VM sends its device code; the second process, and the
first of the VM's next server, send digests. Each line says what was done by then: seconds, bytes
sent, round trips; all of them by the process's own count. The losses must be the same.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from host_server.cuda_libraries import cuda_libraries
from host_server.tests.gpu.run_gpu import _driver_folders
from testbed.experiment.client import host_variables
from testbed.experiment.systems import system
from testbed.machine.artifacts import cache_dir
from testbed.machine.host_server import IMAGES_NAME, HostServerConfig, host_server
from testbed.machine.native_build import native_build

PROGRAM = "--program"
LIMIT_S = 90.0
COUNTED = ("bytes_sent", "messages", "round_trips")
VM = "first-use"


def program() -> None:
    """A network with convolutions, normalisation and products: its first and second step."""
    begin_s = time.monotonic()
    path = os.environ.get("WORMHOLE_MARK_LIB")
    library = ctypes.CDLL(path) if path else None

    def done(what: str, **more: object) -> None:
        if library is not None:
            library.wormhole_mark(what.encode())
        print(json.dumps({"what": what, "s": time.monotonic() - begin_s, **more}), flush=True)

    import torch
    from torch import nn

    done("import")
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    layers: list[nn.Module] = []
    for index, width in enumerate((16, 32, 64, 64)):
        before = (3, 16, 32, 64)[index]
        layers += [nn.Conv2d(before, width, 3, stride=1 + index % 2, padding=1)]
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 8 * 8, 10)).cuda()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.rand(32, 3, 32, 32).cuda()
    labels = torch.randint(0, 10, (32,)).cuda()
    done("tensors")
    for step in ("step 1", "step 2", "step 3"):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimiser.step()
        done(step, loss=loss.item().hex())


def run(name: str, environment: dict[str, str], stats: Path | None) -> list[str]:
    """One process; prints what it counted and returns its losses."""
    if stats is not None:
        stats.unlink(missing_ok=True)
        environment = {**environment, "WORMHOLE_STATS": str(stats)}
    argv = [sys.executable, "-m", "host_server.tests.gpu.first_use", PROGRAM]
    done = subprocess.run(
        argv,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    counts: dict[str, dict[str, int]] = {}
    if stats is not None and stats.exists():
        lines = map(json.loads, stats.read_text(encoding="utf-8").splitlines())
        counts = {line["label"]: line for line in lines if line["event"] == "mark"}
    for line in said:
        counted = counts.get(line["what"], {})
        text = "".join(f" {key} {counted[key]}" for key in COUNTED if key in counted)
        print(f"{name:28} {line['what']:8} {line['s']:7.3f} s{text}", flush=True)
    if done.returncode != 0:
        print(f"{name}: status {done.returncode}\n{done.stderr[-2000:]}")
    return [line["loss"] for line in said if "loss" in line]


def serve(name: str, rounds: Sequence[str], images_mib: int | None) -> list[list[str]]:
    """A server, and one process after the other."""
    chosen, build = system(name), native_build()
    tcp = chosen.transport == "tcp"
    config = HostServerConfig(
        backend="cuda",
        unix=not tcp,
        tcp=tcp,
        worker=build.worker,
        cuda=tuple(cuda_libraries()),
        vm=VM,
        images_mib=images_mib,
        environment={"LD_LIBRARY_PATH": _driver_folders()},
    )
    losses = []
    with (
        tempfile.TemporaryDirectory(prefix="wormhole-gpu-") as folder,
        host_server(config, Path(folder) / "server") as server,
    ):
        environment = {
            **host_variables(chosen, server),
            "LD_LIBRARY_PATH": str(build.cuda),
            "LD_PRELOAD": ":".join(map(str, sorted(build.cuda.glob("*.so*")))),
            "WORMHOLE_MARK_LIB": str(build.cuda / "libwormhole_cuda.so"),
        }
        for what in rounds:
            losses.append(run(f"{name} {what}", environment, Path(folder) / "stats"))
        said = server.log.read_text(encoding="utf-8", errors="replace")
        print("\n".join(line for line in said.splitlines() if "worker" in line)[-1500:])
    return losses


def main() -> int:
    """Entry point; 0 if all losses were native's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", default="wormhole")
    parser.add_argument("--without", action="store_true", help="also with nothing kept")
    arguments = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    kept = cache_dir() / IMAGES_NAME / VM
    native_build()
    run("native (warm-up)", {}, None)
    native = run("native", {}, None)
    losses = []
    for name in arguments.systems.split(","):
        shutil.rmtree(kept, ignore_errors=True)
        losses += serve(name, ("first process", "second process"), None)
        sizes = [path.stat().st_size for path in kept.glob("code/*")]
        print(f"kept: {len(sizes)} files, {sum(sizes)} bytes")
        losses += serve(name, ("next server",), None)
        if arguments.without:
            losses += serve(name, ("nothing kept",), 0)
    same = all(found == native for found in losses)
    print("ALL THE SAME" if same and len(native) == 3 else f"DIFFERENT: {native} {losses}")
    return 0 if same else 1


if __name__ == "__main__":
    if PROGRAM in sys.argv:
        program()
    else:
        sys.exit(main())
