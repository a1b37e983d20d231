"""Runs the same cases natively and forwarded and compares what came of each.

The program's lines say group, case and outcome.  Natively some cases kill or hang their process:
there a forwarder need only go on.  Where a forwarder cannot answer as native does, the spec says
why (`answered`, `truth` and `differs` in opencl.yaml).
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testbed.errors import TestbedError
from testbed.experiment.client import cleaned, client_environment, guest_variables, vendor_folder
from testbed.experiment.systems import System, check_placement, system
from testbed.machine.differential_build import differential_program
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import native_build
from testbed.machine.opencl import vendor_library
from testbed.machine.qemu_argv import VmConfig
from testbed.machine.served_guest import ServedGuest, served_guest
from testbed.protocol.spec import Function, load_api

RUN_LIMIT_S = 1800.0
SINGLE_GROUPS = "find the case with single groups: ./inv differential -- FUNCTION..."
DEATHS = ("killed by signal", "hang", "ended the process", "no setting")
GUEST_PROGRAM = "/opt/wormhole/differential"
GUEST_ALONE = "/opt/wormhole/differential-alone"

Outcomes = dict[tuple[str, str], str]


@dataclass(frozen=True)
class Disagreement:
    """One case with both values."""

    group: str
    case: str
    native: str
    forwarded: str


@dataclass
class Comparison:
    """What came of all cases."""

    agreed: int = 0
    by_rule: int = 0
    undefined: int = 0  # native died of them
    disagreements: list[Disagreement] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """How many were compared in one way or another."""
        return self.agreed + self.by_rule + self.undefined + len(self.disagreements)


def run_differential(
    placement: str = "process",
    system_name: str = "wormhole",
    device: str = "pocl",
    groups: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Run all cases (or those of some groups) natively and under a system, and compare.

    Raises TestbedError if something cannot be run at all.
    """
    chosen = system(system_name)
    check_placement(placement, chosen)
    if chosen.is_native:
        raise TestbedError("native is what is compared with", "give another --system")
    program = differential_program()
    with tempfile.TemporaryDirectory(prefix="wormhole-differential-") as name:
        folder = Path(name)
        vendor = device_vendor(device, folder)
        say(f"running the cases natively on {device}")
        native = run_native(program, vendor, groups)
        say(f"running them under {system_name}, {placement} placement")
        forwarded = forward(program, vendor, chosen, placement, native, groups, folder)
    return compare(native, forwarded)


def device_vendor(device: str, folder: Path) -> Path:
    """A vendor file of one accelerator (see opencl.py for its names), in a folder of its own."""
    library = vendor_library(device)
    vendors = folder / "device"
    vendors.mkdir(exist_ok=True)
    vendor = vendors / f"{device}.icd"
    vendor.write_text(f"{library}\n", encoding="utf-8")
    return vendor


def run_native(program: Path, vendor: Path, groups: Sequence[str] = ()) -> Outcomes:
    """The outcomes with the accelerator's own library."""
    environment = {**cleaned(os.environ), "OCL_ICD_VENDORS": f"{vendor.parent}/"}
    return _run([str(program), "--native", *groups], environment)


def forward(
    program: Path,
    vendor: Path,
    chosen: System,
    placement: str,
    native: Outcomes,
    groups: Sequence[str],
    folder: Path,
) -> Outcomes:
    """The outcomes under a system; cases of which native died get a process of their own."""
    build = native_build()
    alone = folder / "alone"
    alone.write_text(
        "".join(f"{group}\t{case}\n" for (group, case), text in native.items() if is_death(text)),
        encoding="utf-8",
    )
    tcp = chosen.transport == "tcp"
    if placement == "process":
        config = HostServerConfig(unix=not tcp, tcp=tcp, worker=build.worker, vendors=vendor)
        with host_server(config, folder / "server") as server:
            vendors = vendor_folder(folder, build.library)
            environment = client_environment(os.environ, chosen, server, vendors)
            return _run([str(program), "--alone", str(alone), *groups], environment)
    config = HostServerConfig(tcp=True, worker=build.worker, vendors=vendor)
    vm = VmConfig(name="differential")
    with served_guest(vm, config, build.library, folder / "guest") as served:
        return forward_in_guest(served, program, alone, chosen, groups)


def forward_in_guest(
    served: ServedGuest, program: Path, alone: Path, chosen: System, groups: Sequence[str]
) -> Outcomes:
    """The outcomes in a guest that is up."""
    served.vm.ssh.put({GUEST_PROGRAM: program, GUEST_ALONE: alone})
    served.vm.ssh.run(["chmod", "755", GUEST_PROGRAM], timeout_s=60)
    done = served.vm.guest.run(
        [GUEST_PROGRAM, "--alone", GUEST_ALONE, *groups],
        guest_variables(chosen, served.server),
        timeout_s=RUN_LIMIT_S,
    )
    if done.status != 0:
        raise TestbedError(
            f"the cases ended with status {done.status}: {done.complaint}", SINGLE_GROUPS
        )
    return outcomes(done.stdout)


def _run(argv: Sequence[str], environment: Mapping[str, str]) -> Outcomes:
    try:
        done = subprocess.run(
            # The kernel ends the program if we die, in whatever way.
            ["setpriv", "--pdeathsig", "KILL", "--", *argv],
            env=dict(environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=RUN_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TestbedError(f"the cases took longer than {RUN_LIMIT_S:g} s", SINGLE_GROUPS) from None
    if done.returncode != 0:
        raise TestbedError(
            f"the cases ended with status {done.returncode}: {done.stderr.strip()[-200:]}",
            SINGLE_GROUPS,
        )
    return outcomes(done.stdout)


def outcomes(text: str) -> Outcomes:
    """The program's lines."""
    found: Outcomes = {}
    for line in text.splitlines():
        group, case, outcome = line.split("\t", 2)
        found[group, case] = outcome
    return found


def is_death(outcome: str) -> bool:
    """Whether a case ended its process, or never ended."""
    return outcome.startswith(DEATHS)


def compare(native: Outcomes, forwarded: Outcomes) -> Comparison:
    """Every case that native has an outcome for."""
    functions = {function.name: function for function in load_api("opencl").functions}
    result = Comparison()
    for (group, case), expected in native.items():
        got = forwarded.get((group, case), "nothing")
        if is_death(expected) and (not got.startswith("hang") or expected.startswith("hang")):
            result.undefined += 1
        elif got == expected:
            result.agreed += 1
        elif may_differ(functions.get(group), case):
            result.by_rule += 1
        else:
            result.disagreements.append(Disagreement(group, case, expected, got))
    return result


def may_differ(function: Function | None, case: str) -> bool:
    """Whether the spec says that this function, or this query of it, differs from native."""
    if function is None:
        return False
    names = {name for name, _ in function.differs} | {truth.query for truth in function.truth}
    return function.mode == "answered" or bool(names & set(case.split()))


def text_of(comparison: Comparison) -> str:
    """The comparison as people read it: each disagreement with both values, then the counts."""
    lines = []
    for found in comparison.disagreements:
        lines += [
            f"{found.group}: {found.case}",
            f"    native     {found.native}",
            f"    forwarded  {found.forwarded}",
        ]
    lines.append(
        f"{comparison.cases} cases: {comparison.agreed} agreed, "
        f"{len(comparison.disagreements)} disagreed, {comparison.by_rule} differ as the spec says, "
        f"{comparison.undefined} end the native process"
    )
    return "\n".join(lines)


def json_of(comparison: Comparison) -> str:
    """The comparison for programs."""
    return json.dumps(
        {
            "cases": comparison.cases,
            "agreed": comparison.agreed,
            "differ_by_rule": comparison.by_rule,
            "native_undefined": comparison.undefined,
            "disagreed": [vars(found) for found in comparison.disagreements],
        },
        indent=2,
    )


def differential(
    placement: str, system_name: str, device: str, groups: Sequence[str], as_json: bool
) -> None:
    """Run, print, and fail if something disagrees."""
    from testbed.progress import say

    done = run_differential(placement, system_name, device, groups, say)
    print(json_of(done) if as_json else text_of(done))
    if done.disagreements:
        raise TestbedError(
            f"{len(done.disagreements)} of {done.cases} cases disagree with native",
            "each is printed above with both values",
        )
