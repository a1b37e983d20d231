"""The C clients of guest_agent/stub/opencl/tests: compiling them, what they list, running them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from testbed.experiment.client import client_environment, vendor_folder
from testbed.experiment.systems import System
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import native_build
from testbed.root import ROOT

CLIENTS = ROOT / "guest_agent" / "stub" / "opencl" / "tests"
LIMIT_S = 300.0
SESSION_BYTES = HostServerConfig.session_bytes
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compile_client(folder: Path, name: str, *flags: str) -> Path:
    """A client by its source's name without suffix, linked with the system's loader."""
    program = folder / name
    argv = ["gcc", "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", *flags]
    argv += ["-o", str(program), str(CLIENTS / f"{name}.c"), "-l:libOpenCL.so.1"]
    subprocess.run(argv, check=True, timeout=LIMIT_S)
    return program


def scenarios(client: Path) -> list[str]:
    """What a client runs when it is told to: the names that it prints without an argument."""
    done = subprocess.run([client], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return done.stdout.split()


@contextmanager
def serving(
    chosen: System, folder: Path, build: str = "", session_bytes: int = SESSION_BYTES
) -> Iterator[dict[str, str]]:
    """The environment of a client, native or with a server of its own.

    `build` is the sanitizer of stub and worker (`native_build`).
    """
    if chosen.is_native:
        yield dict(os.environ)
        return
    built = native_build(build)
    tcp = chosen.transport == "tcp"
    # The sanitizers need /proc and more memory than the jail leaves.
    config = HostServerConfig(
        unix=not tcp, tcp=tcp, session_bytes=session_bytes, worker=built.worker, jail=not build
    )
    with host_server(config, folder / "server") as server:
        vendors = vendor_folder(folder, built.library)
        yield client_environment(os.environ, chosen, server, vendors)


def run_client(
    argv: Sequence[str | Path], environment: Mapping[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A client's end; its standard output is a pipe, `folder` its working directory."""
    return subprocess.run(
        argv,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def expect_success(done: subprocess.CompletedProcess[str]) -> None:
    """The client ended with status 0."""
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]


def expect_ok(done: subprocess.CompletedProcess[str], names: Sequence[str]) -> None:
    """The client ran these scenarios, and each said that it is well."""
    expect_success(done)
    assert done.stdout.splitlines() == [f"{name} ok" for name in names]
