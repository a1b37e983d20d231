"""`bench.copy`: how fast data gets to a buffer and back, natively and under every system.

Pageable memory is written and read; a mapped buffer has all its bytes set or summed up.  Natively
and under each system a fresh process measures all sizes, in rounds, beside a plain memcpy of the
same process; a ratio is native time by forwarded time, paired by round.  A guest has no native
run to compare with (without KVM the ratio would be the emulator's), so there memcpy is the measure.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from testbed.analysis.statistics import Interval, geometric_mean, paired_ratio
from testbed.errors import TestbedError
from testbed.experiment.client import (
    client_environment,
    guest_variables,
    kept_environment,
    vendor_folder,
)
from testbed.experiment.systems import System, check_placement, system
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import native_build
from testbed.machine.opencl import native_variables
from testbed.machine.qemu_argv import VmConfig
from testbed.machine.served_guest import served_guest

SYSTEMS = ("wormhole", "wormhole-sync", "tcp-sync")
NATIVE = "native"
KINDS = ("memcpy", "write", "read", "map_write", "map_read")
SIZES = "4K,16K,64K,256K,1M,4M,16M,64M,256M"
GUEST_SIZES = "4K,64K,1M,4M"  # under an emulator a larger one takes minutes over TCP
SIZE_BYTES_MAX = 1 << 30
ROUNDS_MAX = 100
RUN_LIMIT_S = 600.0
SHORTER = "give smaller --sizes"
GUEST_PROGRAM = "/tmp/wormhole-bench-copy"
GUEST_REPEATS = 5  # an emulated processor is slow
HOST_REPEATS = 100

Say = Callable[[str], None]
#: Runs the client with these arguments under the system of this name; its standard output.
Run = Callable[[str, Sequence[str]], str]


def bench_copy(
    placement: str = "process", sizes: str = "", rounds: int = 5, say: Say = lambda text: None
) -> dict[str, Any]:
    """Measure in `process` or `guest` placement; times are medians in seconds.

    Raises TestbedError for a size that cannot be, or if a part cannot be built or started.
    """
    check_placement(placement)
    counts = parse_sizes(sizes or (SIZES if placement == "process" else GUEST_SIZES))
    if not 1 <= rounds <= ROUNDS_MAX:
        raise TestbedError(f"{rounds} rounds are not possible", f"give 1 to {ROUNDS_MAX}")
    repeats = HOST_REPEATS if placement == "process" else GUEST_REPEATS
    arguments = ["--repeats", str(repeats), *(str(size) for size in counts)]
    with tempfile.TemporaryDirectory(prefix="wormhole-bench-") as directory, ExitStack() as stack:
        place = _process_place if placement == "process" else _guest_place
        run = stack.enter_context(place(Path(directory)))
        order = [*SYSTEMS] if placement == "guest" else [NATIVE, *SYSTEMS]
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in order}
        for number in range(rounds):
            # Every other round in reverse, so that a drift does not favour the first.
            for name in order if number % 2 == 0 else order[::-1]:
                say(f"round {number + 1} of {rounds}: {name}")
                runs[name].append(_result(run(name, arguments), name))
    return {"placement": placement, "rounds": rounds, "sizes": summarise(runs, counts)}


def parse_sizes(text: str) -> list[int]:
    """Sizes in bytes from a list like "4K,1M,100"."""
    found = []
    for word in text.split(","):
        factor = {"K": 1 << 10, "M": 1 << 20}.get(word.strip()[-1:].upper(), 1)
        digits = word.strip() if factor == 1 else word.strip()[:-1]
        if not digits.isdecimal() or not 1 <= int(digits) * factor <= SIZE_BYTES_MAX:
            raise TestbedError(
                f"'{word}' is no size", f"give 1 to {SIZE_BYTES_MAX} bytes, for example 4K,64M"
            )
        found.append(int(digits) * factor)
    return found


def summarise(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], sizes: Sequence[int]
) -> dict[str, Any]:
    """For each size, system and kind: time, bandwidth, and the ratios to native and memcpy."""
    return {
        str(size): {
            name: {kind: _figure(runs, name, str(size), kind) for kind in KINDS} for name in runs
        }
        for size in sizes
    }


def table(figures: Mapping[str, Any]) -> str:
    """The figures as lines for a terminal."""
    lines = [
        f"{figures['placement']} placement, {figures['rounds']} rounds; GB/s, then the part of"
    ]
    lines[0] += " native's (of memcpy's, in a guest) with its 95 % interval"
    for size, systems in figures["sizes"].items():
        lines.append(f"{_shown(int(size))}")
        for name, kinds in systems.items():
            lines.append(
                "  " + f"{name:14}" + "  ".join(_cell(kinds[kind], kind) for kind in KINDS)
            )
    return "\n".join(lines)


def _cell(figure: Mapping[str, Any], kind: str) -> str:
    text = f"{kind} {figure['gigabytes_per_s']:.2f}"
    ratio = figure["of_native"] or figure["of_memcpy"]
    if kind == "memcpy" or ratio is None:
        return text
    interval = "" if ratio["low"] is None else f" [{ratio['low']:.2f}, {ratio['high']:.2f}]"
    return f"{text} ({ratio['estimate']:.2f}{interval})"


def _shown(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def _figure(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], name: str, size: str, kind: str
) -> dict[str, Any]:
    rates = _rates(runs[name], size, kind)
    native = _rates(runs[NATIVE], size, kind) if NATIVE in runs and name != NATIVE else {}
    plain = _rates(runs[name], size, "memcpy") if kind != "memcpy" else {}
    return {
        "seconds": [float(run[size][f"{kind}_s"]) for run in runs[name]],
        "gigabytes_per_s": geometric_mean(list(rates.values())) / 1e9,
        "of_native": _ratio(paired_ratio(rates, native)),
        "of_memcpy": _ratio(paired_ratio(rates, plain)),
    }


def _rates(runs: Sequence[Mapping[str, Any]], size: str, kind: str) -> dict[int, float]:
    """Bytes a second by round."""
    return {i: int(size) / float(run[size][f"{kind}_s"]) for i, run in enumerate(runs)}


def _ratio(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    return {"estimate": interval.estimate, "low": interval.low, "high": interval.high}


def _result(output: str, name: str) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(output)
    except ValueError as error:
        raise TestbedError(f"the bench printed no result under {name}: {output!r}") from error
    return result


@contextmanager
def _process_place(run_dir: Path) -> Iterator[Run]:
    build = native_build()
    vendors = vendor_folder(run_dir, build.library)
    config = HostServerConfig(unix=True, tcp=True, worker=build.worker)
    with host_server(config, run_dir / "server") as server:

        def run(name: str, arguments: Sequence[str]) -> str:
            environment = {**kept_environment(), **native_variables()}
            if name != NATIVE:
                environment = client_environment(environment, _chosen(name), server, vendors)
            try:
                done = subprocess.run(
                    [str(build.bench_copy), *arguments],
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=RUN_LIMIT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise TestbedError(f"{name} took more than {RUN_LIMIT_S:.0f} s", SHORTER) from None
            return _checked(done.returncode, done.stdout, done.stderr)

        yield run


@contextmanager
def _guest_place(run_dir: Path) -> Iterator[Run]:
    build = native_build()
    config = HostServerConfig(tcp=True, worker=build.worker)
    # Three blocks of the largest size at once, besides what the guest itself needs.
    vm_config = VmConfig(name="bench-copy", memory_mib=1536)
    with served_guest(vm_config, config, build.library, run_dir) as served:
        served.vm.ssh.put({GUEST_PROGRAM: build.bench_copy})

        def run(name: str, arguments: Sequence[str]) -> str:
            variables = guest_variables(_chosen(name), served.server)
            argv = [GUEST_PROGRAM, *arguments]
            done = served.vm.guest.run(argv, variables, cwd="/tmp", timeout_s=RUN_LIMIT_S)
            if done.reason == "timeout":
                raise TestbedError(
                    f"{name} took more than {RUN_LIMIT_S:.0f} s in the guest", SHORTER
                )
            events = "\n".join(json.dumps(event) for event in done.events)
            return _checked(done.status, done.stdout or events, done.stderr)

        yield run


def _chosen(name: str) -> System:
    return system(name, [])


def _checked(status: int, output: str, errors: str) -> str:
    if status != 0:
        last = errors.strip().splitlines()[-1:] or ["it said nothing"]
        raise TestbedError(f"the bench ended with status {status}: {last[0]}")
    return output
