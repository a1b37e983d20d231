"""What leads a client to an accelerator library: ours with a server behind it, or the system's.

An OpenCL client asks the loader, which takes the libraries that a vendor folder names; ours then
reads from its environment where the server is and how the switches stand.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from testbed.experiment.systems import System
from testbed.machine.guest import CUDA_PATH
from testbed.machine.host_server import HostServer
from testbed.machine.opencl import loader_variables, native_variables
from testbed.machine.served_guest import Server, guest_url

# Each of these would lead the OpenCL loader or the stub somewhere else.
FORBIDDEN_PREFIXES = ("WORMHOLE_", "OCL_ICD_", "OPENCL_VENDOR_PATH")

# What says where programs and files are.
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")


def kept_environment() -> dict[str, str]:
    """All that a measured, recorded or reference run on the host sees of our own environment."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {**kept, **loader_variables()}


def cleaned(base: Mapping[str, str]) -> dict[str, str]:
    """An environment without what chooses an accelerator library, for programs run by hand."""
    kept = {name: value for name, value in base.items() if not name.startswith(FORBIDDEN_PREFIXES)}
    return _with(kept, loader_variables())


def native_by_hand(base: Mapping[str, str]) -> dict[str, str]:
    """The same for a program that uses the host's own OpenCL, or the one chosen."""
    return _with(cleaned(base), native_variables())


def _with(base: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """An environment with more variables; a program's own library path is kept behind ours."""
    merged = {**base, **more}
    if "LD_LIBRARY_PATH" in base and "LD_LIBRARY_PATH" in more:
        words = f"{more['LD_LIBRARY_PATH']}:{base['LD_LIBRARY_PATH']}".split(":")
        merged["LD_LIBRARY_PATH"] = ":".join(dict.fromkeys(words))
    return merged


def client_environment(
    base: Mapping[str, str], chosen: System, server: HostServer, vendors: Path
) -> dict[str, str]:
    """A host program's environment that makes it find our library and this server."""
    return {
        **cleaned(base),
        **host_variables(chosen, server),
        # The loader takes a name without the slash for a single file.
        "OCL_ICD_VENDORS": f"{vendors}/",
    }


def cuda_variables(base: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What puts our libraries of CUDA before all others, in whatever way a program finds its own.

    A program's run path may come before LD_LIBRARY_PATH; a library that is loaded already, by its
    name, comes before everything.
    """
    libraries = sorted(folder.glob("*.so*"))
    path = [str(folder), *filter(None, [base.get("LD_LIBRARY_PATH")])]
    preload = [*map(str, libraries), *filter(None, [base.get("LD_PRELOAD")])]
    return {"LD_LIBRARY_PATH": ":".join(path), "LD_PRELOAD": ":".join(preload)}


def guest_cuda_variables(folder: Path) -> dict[str, str]:
    """The same in a guest with a copy of that folder (`Guest.install_cuda`)."""
    libraries = [str(CUDA_PATH / path.name) for path in sorted(folder.glob("*.so*"))]
    return {"LD_LIBRARY_PATH": str(CUDA_PATH), "LD_PRELOAD": ":".join(libraries)}


def host_variables(chosen: System, server: HostServer) -> dict[str, str]:
    """What tells our library in a host process how to reach the server, and the switches."""
    return chosen.environment(server.url(chosen.transport), _token(chosen, server))


def guest_variables(chosen: System, server: Server) -> dict[str, str]:
    """The same for a process in the server's guest."""
    return chosen.environment(guest_url(server, chosen.transport), _token(chosen, server))


def vendor_folder(parent: Path, library: Path) -> Path:
    """A vendor folder in `parent` that names our library alone."""
    vendors = parent / "vendors"
    vendors.mkdir(parents=True, exist_ok=True)
    (vendors / "wormhole.icd").write_text(f"{library}\n", encoding="utf-8")
    return vendors


def _token(chosen: System, server: Server) -> str:
    """The secret, for those that need it: a server without TCP has none."""
    return server.token if chosen.transport == "tcp" else ""
