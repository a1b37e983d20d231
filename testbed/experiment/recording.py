"""Recorded call streams: made by running a program under tcp-sync, where every call is a message.

The file's format is testbed/protocol/c/wh_record.h.  A recording holds every request with its data
and every reply, so it can be sent again by a small C client that needs neither the program nor its
Python (host_server/replay), under any system, and every byte that comes back can be checked.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from testbed.errors import TestbedError
from testbed.experiment.client import client_environment, kept_environment, vendor_folder
from testbed.experiment.events import read_events
from testbed.experiment.gate import check_trajectory
from testbed.experiment.prepare import (
    Bundle,
    conditions,
    kernel_cache_seed,
    read_command,
    reference,
)
from testbed.experiment.program import complaint_of, run_program
from testbed.experiment.provenance import opencl
from testbed.experiment.systems import system
from testbed.experiment.workload import Command, Model
from testbed.machine.artifacts import artifact
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import native_build
from testbed.protocol.spec import load_api
from testbed.protocol.wire import hash_of_specs

MAGIC = 0x4452434552484F57
VERSION = 1
HEADER = struct.Struct("<QIIQQ")  # magic, version, reserved, spec hash, reserved
ENTRY = struct.Struct("<IIQQ")  # type, thread, size in bytes, time in ns
REQUEST = struct.Struct("<IHHII")  # wh_request_header: size, opcode, flags, slot, sequence
REPLY = struct.Struct("<IIiiII")  # wh_reply_header: sequence, size, status, ...
TYPE_REQUEST, TYPE_REPLY, TYPE_MARK = 1, 2, 3
ALIGNMENT = 8

RECORD_SYSTEM = "tcp-sync"
RECORDING_NAME = "calls.whrec"
COMMAND_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Recording:
    """A recorded call stream; sizes in bytes, `functions` counts calls by name.

    `calls_at_marks` are the calls before each mark, so differences are the calls of a step.
    """

    path: Path
    calls: int
    marks: tuple[str, ...]
    calls_at_marks: tuple[int, ...]
    threads: int
    request_bytes: int
    reply_bytes: int
    functions: Mapping[str, int]


def record_bundle(bundle: Bundle) -> Recording:
    """The recording of a prepared workload, made in `process` placement or taken from the cache.

    A run that does not give native's losses is not kept.  Raises TestbedError.
    """
    native = native_build()
    model = isinstance(bundle.workload.task, Model)
    inputs: dict[str, str | bytes | Path] = {
        "bundle": bundle.key,
        "native": native.directory.name,
        "spec": f"{hash_of_specs():016x}",
        "maker": Path(__file__),
        "accelerator": json.dumps(conditions(bundle) if model else opencl(), sort_keys=True),
    }

    def build(directory: Path) -> None:
        path = directory / RECORDING_NAME
        with tempfile.TemporaryDirectory(prefix="wormhole-record-") as folder:
            logs = Path(folder)
            record_program(
                bundle.argv(bundle.directory, sys.executable),
                {**kept_environment(), **bundle.environment(bundle.directory)},
                path,
                logs,
                float(bundle.workload.timeout_s),
                kernel_cache_seed(bundle.workload.name),
            )
            _check_run(bundle, logs / "stdout.log")
        read_recording(path)

    directory = artifact(f"recording-{bundle.workload.name}", inputs, build)
    return read_recording(directory / RECORDING_NAME)


def record_command(argv: Sequence[str], path: Path, logs: Path) -> Recording:
    """Record any program that uses OpenCL; it inherits our environment.  Raises TestbedError."""
    record_program(argv, dict(os.environ), path, logs, COMMAND_TIMEOUT_S)
    return read_recording(path)


def record_program(
    argv: Sequence[str],
    environment: Mapping[str, str],
    path: Path,
    logs: Path,
    timeout_s: float,
    kernels: Path | None = None,
) -> None:
    """Run a program on the host under tcp-sync with the recorder on.

    Its output is left in `logs`; `kernels` is a kernel cache to start from.  Raises TestbedError
    if it fails, passes its limit (in seconds) or never calls the accelerator's library.
    """
    native = native_build()
    vendors = vendor_folder(logs, native.library)
    config = HostServerConfig(tcp=True, worker=native.worker)
    with host_server(config, logs / "server") as server:
        if kernels is not None:
            server.use_kernels(kernels)
        end = run_program(
            argv,
            {
                **client_environment(environment, system(RECORD_SYSTEM), server, vendors),
                "WORMHOLE_MARK_LIB": str(native.library),
                "WORMHOLE_RECORD": str(path.absolute()),
            },
            Path.cwd(),
            logs / "stdout.log",
            logs / "stderr.log",
            timeout_s,
        )
        server_log = server.log.read_text(encoding="utf-8", errors="replace").splitlines()
    if end.timed_out:
        raise TestbedError(
            f"{argv[0]} was stopped at its limit of {timeout_s:.0f} s while being recorded",
            "record fewer steps, or raise the workload's `timeout_s`",
        )
    if end.status != 0:
        said = complaint_of(logs / "stderr.log") or (server_log or ["it said nothing"])[-1]
        raise TestbedError(
            f"{argv[0]} ended with status {end.status} while being recorded: {said}",
            "try it without recording: ./inv exec --system tcp-sync -- ...",
        )
    if not path.is_file():
        raise TestbedError(
            f"{argv[0]} made no OpenCL call, so there is nothing to record",
            "check that it uses OpenCL through the system's loader (`./inv exec -- clinfo -l`)",
        )


def read_recording(path: Path) -> Recording:
    """Check a recording and count what is in it.

    Raises TestbedError naming the place if the file is torn, was made by another version of the
    protocol, or holds a call that was never answered.
    """
    try:
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            if size < HEADER.size:
                raise TestbedError(f"{path} is too short to be a recording", "record it again")
            with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(path, data)
    except OSError as error:
        raise TestbedError(
            f"cannot read the recording {path}: {error.strerror or error}", "check the path"
        ) from error


def _read(path: Path, data: mmap.mmap) -> Recording:
    magic, version, _, spec, _ = HEADER.unpack_from(data, 0)
    if magic != MAGIC or version != VERSION:
        raise TestbedError(
            f"{path} is no recording of version {VERSION} (magic {magic:#x}, version {version})",
            "record it again with ./inv record",
        )
    if spec != hash_of_specs():
        raise TestbedError(
            f"{path} was made with the specs {spec:016x}, this checkout has {hash_of_specs():016x}",
            "record it again with ./inv record",
        )
    marks: list[tuple[str, int]] = []
    functions: Counter[str] = Counter()
    threads: set[int] = set()
    waiting: dict[int, str] = {}
    sizes = {TYPE_REQUEST: 0, TYPE_REPLY: 0, TYPE_MARK: 0}
    at, number = HEADER.size, 0
    while at < len(data):
        kind, thread, size, body = _entry(path, data, at, number)
        sizes[kind] += size
        if kind == TYPE_MARK:
            label = data[body : body + size].decode("utf-8", errors="replace")
            marks.append((label, functions.total()))
        elif kind == TYPE_REQUEST:
            _, opcode, _, _, sequence = REQUEST.unpack_from(data, body)
            name = function_names().get(opcode, f"opcode {opcode:#x}")
            functions[name] += 1
            threads.add(thread)
            waiting[sequence] = name
        else:
            (sequence, *_) = REPLY.unpack_from(data, body)
            if waiting.pop(sequence, None) is None:
                raise _torn(path, number, f"answers the unknown request {sequence}")
        at = body + -(-size // ALIGNMENT) * ALIGNMENT
        number += 1
    if waiting:
        sequence, name = next(iter(waiting.items()))
        raise _torn(path, number - 1, f"is the last, and {name} (request {sequence}) has no answer")
    if not functions:
        raise TestbedError(f"{path} holds no calls", "record it again with ./inv record")
    return Recording(
        path=path,
        calls=sum(functions.values()),
        marks=tuple(label for label, _ in marks),
        calls_at_marks=tuple(calls for _, calls in marks),
        threads=len(threads),
        request_bytes=sizes[TYPE_REQUEST],
        reply_bytes=sizes[TYPE_REPLY],
        functions=dict(functions.most_common()),
    )


def _entry(path: Path, data: mmap.mmap, at: int, number: int) -> tuple[int, int, int, int]:
    """Type, thread, size and place of an entry's content, checked."""
    if at + ENTRY.size > len(data):
        raise _torn(path, number, f"is cut off at byte {at}")
    kind, thread, size, _ = ENTRY.unpack_from(data, at)
    body = at + ENTRY.size
    least = {TYPE_REQUEST: REQUEST.size, TYPE_REPLY: REPLY.size, TYPE_MARK: 0}
    if kind not in least:
        raise _torn(path, number, f"has the unknown type {kind}")
    if size < least[kind] or body + -(-size // ALIGNMENT) * ALIGNMENT > len(data):
        raise _torn(path, number, f"has the impossible size {size}")
    return kind, thread, size, body


@cache
def function_names() -> Mapping[int, str]:
    """Opcode -> name of every function of the protocol."""
    return {
        function.opcode: function.name
        for api in (load_api("core"), load_api("opencl"))
        for function in api.functions
    }


def _check_run(bundle: Bundle, output: Path) -> None:
    """The recorded run must have computed what native computes, or its replays prove nothing."""
    workload = bundle.workload
    native = reference(bundle)
    if native is None:
        return
    if isinstance(workload.task, Command):
        observed = read_command(workload.task, output)
    else:
        with output.open(encoding="utf-8", errors="replace") as lines:
            observed = read_events(lines)
    verdict = check_trajectory(native, observed, workload.tolerance, workload.steps)
    if not verdict.passed:
        raise TestbedError(
            f"the recorded run of {workload.name} is wrong: {verdict.reason}",
            f"compare with ./inv exec --system native: forwarding under {RECORD_SYSTEM} is broken",
        )


def _torn(path: Path, number: int, problem: str) -> TestbedError:
    return TestbedError(f"{path} is damaged: entry {number} {problem}", "record it again")
