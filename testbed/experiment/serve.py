"""`./inv serve`: a host server in the foreground, for clients that are started by hand."""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from pathlib import Path

from testbed.errors import TestbedError
from testbed.experiment.client import host_variables, vendor_folder
from testbed.experiment.systems import system
from testbed.guard import Interrupted
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import native_build
from testbed.progress import say

#: One over shared memory and one over TCP; every other system differs in switches alone.
DEFAULT_SYSTEMS = ("wormhole", "tcp-sync")
POLL_S = 0.5


def serve(system_name: str, as_json: bool) -> None:
    """Run a host server and print what a client's environment needs; end it at a signal.

    `system_name` "" prints for `DEFAULT_SYSTEMS`.  Raises TestbedError if the server dies.
    """
    systems = [system(name) for name in ([system_name] if system_name else DEFAULT_SYSTEMS)]
    if any(chosen.is_native for chosen in systems):
        raise TestbedError("native has no server", "give a system that forwards, or none")
    build = native_build()
    try:
        with tempfile.TemporaryDirectory(prefix="wormhole-serve-") as name:
            folder = Path(name)
            vendors = f"{vendor_folder(folder, build.library)}/"
            config = HostServerConfig(unix=True, tcp=True, worker=build.worker)
            with host_server(config, folder / "server") as server:
                offers = {
                    chosen.name: {"OCL_ICD_VENDORS": vendors, **host_variables(chosen, server)}
                    for chosen in systems
                }
                _show(server.pid, offers, as_json)
                say(f"serving (pid {server.pid}, log {server.log}); Ctrl-C ends it")
                while True:
                    server.check_alive()
                    time.sleep(POLL_S)
    except Interrupted:
        say("the server and its sessions have been ended")


def _show(pid: int, offers: dict[str, dict[str, str]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"pid": pid, "environment": offers}), flush=True)
        return
    for name, variables in offers.items():
        print(f"# {name}: in the client's shell")
        for variable, value in variables.items():
            print(f"export {variable}={shlex.quote(value)}", flush=True)
