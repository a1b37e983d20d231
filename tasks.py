"""The tasks of the testbed: each parses its arguments and calls one function."""

from __future__ import annotations

import json as json_module
import os
import sys
from pathlib import Path

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task

from testbed.guard import guarded

FORWARDED_HELP = "system: wormhole, wormhole-sync, wormhole-notify, tcp-sync"
SYSTEM_HELP = f"{FORWARDED_HELP}, native"
PLACEMENT_HELP = "placement: process (host processes) or guest (a QEMU guest)"
OPENCL_HELP = "use only this OpenCL of the host: pocl, nvidia, a word of a vendor file's name"
JSON_HELP = "print JSON instead of a table"
DEFAULT_SPIN = -1  # the system's own bound


@task(help={"json": JSON_HELP})
@guarded
def doctor(_: Context, json: bool = False) -> None:
    """Say what this machine can do, and the command that mends each lack."""
    from testbed.doctor import run_doctor

    run_doctor(json)


@task(
    help={
        "profile": "experiment in workloads/experiments/ (default: quick; no GPU, no KVM needed)",
        "dry-run": "print the plan and its estimated time, run nothing",
        "resume": "directory of a stopped run to go on with",
        "changed-source": "go on though the source has changed since; the manifest says so",
        "limit-s": "stop between rounds before so many seconds have passed; go on with --resume",
        "report": "tables, figures and report at the end (default); --no-report for the records",
        "out": "directory for results (default: results/ of the checkout)",
        "placement": f"only this {PLACEMENT_HELP}",
        "opencl": OPENCL_HELP,
    }
)
@guarded
def reproduce(
    _: Context,
    profile: str = "quick",
    dry_run: bool = False,
    resume: str = "",
    out: str = "",
    placement: str = "",
    opencl: str = "",
    changed_source: bool = False,
    limit_s: float = 0.0,
    report: bool = True,
) -> None:
    """The main job: build what is missing, boot guests, compare all systems, leave results."""
    from testbed.experiment.reproduce import run_or_plan
    from testbed.machine.opencl import choose_opencl

    choose_opencl(opencl)
    run_or_plan(profile, dry_run, resume, out, placement, changed_source, limit_s, report)


@task(
    positional=["experiment"],
    help={
        "experiment": "experiment file or its name in workloads/experiments/",
        "dry-run": "print the plan and its estimated time, run nothing",
        "resume": "directory of a stopped run to go on with",
        "changed-source": "go on though the source has changed since; the manifest says so",
        "limit-s": "stop between rounds before so many seconds have passed; go on with --resume",
        "report": "tables, figures and report at the end (default); --no-report for the records",
        "out": "directory for results (default: results/ of the checkout)",
        "placement": f"only this {PLACEMENT_HELP}",
        "opencl": OPENCL_HELP,
    },
)
@guarded
def run(
    _: Context,
    experiment: str,
    dry_run: bool = False,
    resume: str = "",
    out: str = "",
    placement: str = "",
    opencl: str = "",
    changed_source: bool = False,
    limit_s: float = 0.0,
    report: bool = True,
) -> None:
    """Run one experiment."""
    from testbed.experiment.reproduce import run_or_plan
    from testbed.machine.opencl import choose_opencl

    choose_opencl(opencl)
    run_or_plan(experiment, dry_run, resume, out, placement, changed_source, limit_s, report)


@task(
    help={
        "out": "file to write (default: wormhole-bundle.tar.xz)",
        "experiments": "experiments whose workloads go with it, comma-separated",
        "guest": "with QEMU and a guest (default); --no-guest for process placement alone",
    }
)
@guarded
def bundle(
    _: Context, out: str = "wormhole-bundle.tar.xz", experiments: str = "", guest: bool = True
) -> None:
    """Make one file that runs experiments on a machine without network, compiler or packages."""
    from testbed.experiment.offline import run_bundle

    run_bundle(Path(out), experiments, guest)


@task(positional=["run"], help={"run": "directory of a run", "json": JSON_HELP})
@guarded
def plot(_: Context, run: str, json: bool = False) -> None:
    """Rebuild the tables and figures of a run from its raw record."""
    from testbed.analysis.report import plot as rebuild
    from testbed.analysis.tables import json_text

    report = rebuild(Path(run))
    print(json_text(report.comparisons) if json else report.text)
    for file in report.files:
        print(file, file=sys.stderr)


@task(positional=["run"], help={"run": "directory of a run", "json": JSON_HELP})
@guarded
def report(_: Context, run: str, json: bool = False) -> None:
    """Write a run's report as one HTML file, and print what it found."""
    from testbed.analysis.report import run_report

    run_report(Path(run), json)


@task(
    positional=["run", "out"],
    help={"run": "directory of a finished run", "out": "directory to make, in results/published/"},
)
@guarded
def publish(_: Context, run: str, out: str) -> None:
    """Copy a finished run to keep it: the record compressed, tables and figures built from it."""
    from testbed.analysis.publish import run_publish

    run_publish(Path(run), Path(out))


@task(
    positional=["first", "second"],
    help={"first": "directory of a run", "second": "directory of another", "json": JSON_HELP},
)
@guarded
def compare(_: Context, first: str, second: str, json: bool = False) -> None:
    """Compare two runs that were measured alike; status 3 if the second is slower anywhere."""
    from testbed.analysis.compare import run_compare

    raise SystemExit(run_compare(Path(first), Path(second), json))


@task(
    name="exec",
    help={
        "system": SYSTEM_HELP,
        "placement": PLACEMENT_HELP,
        "opencl": OPENCL_HELP,
        "spin-us": "spin bound in microseconds of both sides (default: the system's)",
        "backend": "opencl, or cuda for programs of CUDA's (with --placement process or guest)",
        "stats": "file that gets the stub's counters as JSON lines",
        "timeout-s": "time limit of the program in seconds",
        "jail": "--no-jail: workers without their jail, for finding out why a driver fails",
        "host-python": "in a guest: run on this machine's own Python, seen over a read-only share",
        "share": "folders besides that the guest sees so, comma-separated",
        "report-refused": "say which system calls the jail refuses, for the same",
    },
)
@guarded
def execute(
    _: Context,
    system: str = "wormhole",
    placement: str = "process",
    spin_us: int = DEFAULT_SPIN,
    backend: str = "opencl",
    stats: str = "",
    timeout_s: int = 3600,
    opencl: str = "",
    jail: bool = True,
    report_refused: bool = False,
    host_python: bool = False,
    share: str = "",
) -> None:
    """Run any program on the forwarded accelerator: ./inv exec [options] -- PROGRAM ARGUMENTS."""
    from testbed.cli import command_after_dashes
    from testbed.experiment.execute import execute as run_program
    from testbed.machine.opencl import choose_opencl

    choose_opencl(opencl)
    raise SystemExit(
        run_program(
            command_after_dashes(),
            system,
            placement,
            spin_us=None if spin_us == DEFAULT_SPIN else spin_us,
            stats=Path(stats) if stats else None,
            timeout_s=timeout_s,
            jail=jail,
            report_refused=report_refused,
            backend=backend,
            host_python=host_python,
            share=share,
        )
    )


@task(
    help={
        "out": "file to write (default: the workload's or program's name + .whrec)",
        "workload": "record this workload instead of a program",
        "opencl": OPENCL_HELP,
    }
)
@guarded
def record(_: Context, out: str = "", workload: str = "", opencl: str = "") -> None:
    """Record a program's call stream: ./inv record [--out FILE] -- PROGRAM ARGUMENTS."""
    from testbed.cli import command_after_dashes
    from testbed.experiment.byhand import record as run_record
    from testbed.machine.opencl import choose_opencl

    choose_opencl(opencl)
    run_record(command_after_dashes(), workload, Path(out) if out else None)


@task(
    positional=["file"],
    help={
        "file": "a record made by ./inv record",
        "system": SYSTEM_HELP,
        "placement": PLACEMENT_HELP,
        "opencl": OPENCL_HELP,
        "json": JSON_HELP,
    },
)
@guarded
def replay(
    _: Context,
    file: str,
    system: str = "wormhole",
    placement: str = "process",
    json: bool = False,
    opencl: str = "",
) -> None:
    """Send a recorded call stream again under a system and check every byte that comes back."""
    from testbed.experiment.byhand import replay as run_replay
    from testbed.machine.opencl import choose_opencl

    choose_opencl(opencl)
    run_replay(Path(file), system, placement, json)


@task(
    help={
        "placement": PLACEMENT_HELP,
        "json": JSON_HELP,
        "spin-us": "spin bound in microseconds (default: the systems' own)",
        "network": "path of a guest's TCP: tap, user, or auto (TAP where the machine allows it)",
    }
)
@guarded
def bench_call(
    _: Context,
    placement: str = "process",
    json: bool = False,
    spin_us: int = DEFAULT_SPIN,
    network: str = "auto",
) -> None:
    """Call latency of every transport beside the machine's own floor, with notifications."""
    from testbed.experiment.byhand import bench_call as run_bench

    run_bench(placement, json, None if spin_us == DEFAULT_SPIN else spin_us, network)


@task(
    help={
        "placement": PLACEMENT_HELP,
        "opencl": OPENCL_HELP,
        "sizes": "bytes, comma-separated, with K or M (default: 4K to 256M, in a guest to 4M)",
        "rounds": "how often each system takes its turn (default: 5)",
        "json": JSON_HELP,
    }
)
@guarded
def bench_copy(
    _: Context,
    placement: str = "process",
    sizes: str = "",
    rounds: int = 5,
    json: bool = False,
    opencl: str = "",
) -> None:
    """Bandwidth to the device and back, pageable and mapped, beside native and plain memcpy."""
    from testbed.experiment.byhand import bench_copy as run_bench
    from testbed.machine.opencl import choose_opencl

    choose_opencl(opencl)
    run_bench(placement, sizes, rounds, json)


@task(
    help={
        "only": "suites, or programs as SUITE/PROGRAM, comma-separated (default: all)",
        "system": FORWARDED_HELP,
        "placement": f"{PLACEMENT_HELP}; a guest runs a few programs of each suite",
        "native": "directory of an earlier run, whose native outcomes are taken",
        "short": "only the programs that ./inv test runs",
        "json": JSON_HELP,
    }
)
@guarded
def suites(
    _: Context,
    only: str = "",
    system: str = "wormhole",
    placement: str = "process",
    native: str = "",
    short: bool = False,
    json: bool = False,
) -> None:
    """Other people's OpenCL programs and test suites, natively and forwarded: what differs."""
    from testbed.experiment.suites.compare import table
    from testbed.experiment.suites.run import Request, as_json, require_agreement, run_suites
    from testbed.progress import say

    request = Request(only, system, placement, native=Path(native) if native else None, short=short)
    done, folder = run_suites(request, say)
    print(json_module.dumps(as_json(done), indent=2) if json else table(done))
    say(f"suites: {folder}")
    require_agreement(done)


@task(
    help={
        "placement": PLACEMENT_HELP,
        "system": FORWARDED_HELP,
        "device": "accelerator of the host: pocl, oclgrind, nvidia, a word of a vendor file's name",
        "json": JSON_HELP,
    }
)
@guarded
def differential(
    _: Context,
    placement: str = "process",
    system: str = "wormhole",
    device: str = "pocl",
    json: bool = False,
) -> None:
    """Run the same OpenCL cases natively and forwarded; `-- GROUP...` runs only those groups."""
    from testbed.cli import command_after_dashes
    from testbed.experiment.differential import differential as run_cases

    run_cases(placement, system, device, command_after_dashes(), json)


@task(
    help={
        "system": f"{FORWARDED_HELP} (default: wormhole over shared memory, tcp-sync over TCP)",
        "json": "print JSON instead of a shell's export lines",
    }
)
@guarded
def serve(_: Context, system: str = "", json: bool = False) -> None:
    """Run a host server until Ctrl-C and print the environment that a client by hand needs."""
    from testbed.experiment.serve import serve as run_server

    run_server(system, json)


@task(
    help={
        "once": "show one look and end",
        "interval": "seconds between looks, over which rates are taken (default: 1)",
        "json": "print a JSON object for each look instead of a table",
    }
)
@guarded
def top(_: Context, once: bool = False, interval: float = 1.0, json: bool = False) -> None:
    """Show this user's live sessions: calls, bytes, sleeps and wakes a second, memory."""
    from testbed.top import run_top

    run_top(once, json, interval)


@task(help={"name": "name of the VM", "memory-mib": "memory in MiB", "cores": "virtual processors"})
@guarded
def vm_boot(_: Context, name: str = "wormhole", memory_mib: int = 1024, cores: int = 2) -> None:
    """Boot a guest that keeps running, with its host server, driver and stub in place."""
    from testbed.experiment.kept_guest import start

    facts = start(name, memory_mib, cores)
    print(f"{name}: up in {facts.boot_s:.0f} s ({facts.accelerator}); ./inv vm.shell --name {name}")


@task(help={"name": "name of the VM", "user": "user in the guest (default: wormhole)"})
@guarded
def vm_shell(_: Context, name: str = "wormhole", user: str = "wormhole") -> None:
    """Open a shell in a running guest, or run one command: ./inv vm.shell -- clinfo -l."""
    from testbed.cli import command_after_dashes
    from testbed.machine.vm import detached_vm, shell_argv

    # Becomes ssh, which then has the terminal to itself.
    argv = shell_argv(detached_vm(name), user, command_after_dashes())
    os.execvp(argv[0], argv)


@task(help={"json": JSON_HELP})
@guarded
def vm_list(_: Context, json: bool = False) -> None:
    """List the guests that vm.boot started."""
    from testbed.experiment.kept_guest import listing, rows

    found = rows()
    print(json_module.dumps(found, indent=2) if json else listing(found))


@task(help={"name": "name of the VM"})
@guarded
def vm_stop(_: Context, name: str = "wormhole") -> None:
    """Stop a guest that vm.boot started, and its host server."""
    from testbed.experiment.kept_guest import stop

    stop(name)


@task(positional=["name"], help={"name": "name of the new workload"})
@guarded
def workload_new(_: Context, name: str) -> None:
    """Write a commented workload and its experiment to begin with (workloads/README.md)."""
    from testbed.experiment.new_workload import new_workload
    from testbed.root import ROOT

    for path in new_workload(name):
        print(f"wrote {path.relative_to(ROOT)}")
    print(f"edit them, then: ./inv workload.check {name}; ./inv run {name}")


@task(positional=["file"], help={"file": "workload file or its name in workloads/"})
@guarded
def workload_check(_: Context, file: str) -> None:
    """Validate a workload and say what it is; errors name file, line and the nearest valid key."""
    from testbed.experiment.workload import find_workload

    workload = find_workload(file)
    print(f"{workload.name}: ok")
    print(workload.summary())


@task(
    positional=["program"],
    help={
        "program": "executable, shared library, folder, Python package or process id",
        "python": "interpreter that has the package (default: the testbed's own, then python3)",
        "json": JSON_HELP,
    },
)
@guarded
def coverage(_: Context, program: str, python: str = "", json: bool = False) -> None:
    """Say which API functions a program can ask for and how each is forwarded; runs nothing."""
    from testbed.coverage.report import run_coverage

    run_coverage(program, python, json)


@task(
    help={
        "messages": "messages that the worker shall execute (default: 200000)",
        "seed": "seed of all choices (default: 1)",
        "backend": "null, opencl or cuda (default: all)",
        "stream": "a recording (./inv record) whose messages are sent and damaged, too",
        "json": JSON_HELP,
    }
)
@guarded
def fuzz(
    _: Context,
    messages: int = 200000,
    seed: int = 1,
    backend: str = "",
    stream: str = "",
    json: bool = False,
) -> None:
    """Send hostile sessions at the worker, built with sanitizers, and say how each ended."""
    from testbed.experiment.fuzz import run_fuzz

    run_fuzz(messages, seed, backend, json, stream)


@task
@guarded
def generate(_: Context) -> None:
    """Generate C code (build/generated) and the table of functions (OPENCL.md) from the specs."""
    from testbed.protocol.generate import main

    main([])


@task(help={"json": JSON_HELP, "renew": "record that the model fits the C as it is now"})
@guarded
def model(_: Context, json: bool = False, renew: bool = False) -> None:
    """Check the protocol of sleeping and waking against every interleaving, with spin."""
    from testbed.model import renew as record_sources
    from testbed.model import run_model

    if renew:
        print("\n".join(record_sources()))
    else:
        run_model(json)


@task(
    help={
        "clients": "number of clients over shared memory, and as many over TCP (default: 200)",
        "guest-clients": "number of clients in a guest (default: 0, which boots none)",
        "seed": "what decides which client is killed when (default: 1)",
        "json": JSON_HELP,
    }
)
@guarded
def soak(
    _: Context, clients: int = 200, guest_clients: int = 0, seed: int = 1, json: bool = False
) -> None:
    """Run many OpenCL clients, kill half of them, and count what is left on the host: nothing."""
    from testbed.experiment.soak import run_soak

    run_soak(clients, guest_clients, seed, json)


@task(
    help={
        "calls": "calls, a quarter each for two programs and two spin bounds (default: 10000000)",
        "pingpongs": "single messages with a pause around the spin bound (default: 1000000)",
        "seed": "what decides the calls and their contents (default: 1)",
        "json": JSON_HELP,
    }
)
@guarded
def drift(
    _: Context,
    calls: int = 10_000_000,
    pingpongs: int = 1_000_000,
    seed: int = 1,
    json: bool = False,
) -> None:
    """Make calls by the million from eight threads and check every result."""
    from testbed.experiment.drift import run_drift

    run_drift(calls, pingpongs, seed, json)


@task(help={"out": "the file to send back (default: kvm-selftest.json)"})
@guarded
def selftest_kvm(_: Context, out: str = "kvm-selftest.json") -> None:
    """Find what only KVM shows (exit counts, memory type, ioeventfd) and write it to one file."""
    from testbed.experiment.selftest_kvm import selftest_kvm as run_selftest
    from testbed.progress import say

    run_selftest(Path(out), say)
    print(f"written: {out}")


@task
@guarded
def check(_: Context) -> None:
    """Linters, types, generated code and unit tests: no VM, under a minute."""
    from testbed.check import run_check

    run_check()


@task
@guarded
def test(_: Context) -> None:
    """Everything: linters, all tests, real guests. Arguments after `--` go to pytest."""
    from testbed.check import run_test
    from testbed.cli import command_after_dashes

    run_test(command_after_dashes())


def _collection() -> Collection:
    """Task names as users type them: groups with a dot."""
    every = Collection(
        *(
            doctor,
            reproduce,
            run,
            plot,
            report,
            publish,
            compare,
            execute,
            record,
            replay,
            suites,
            differential,
        ),
        *(serve, top, coverage, generate, model, soak, drift, check, test, fuzz, bundle),
    )
    for name, members in (
        ("bench", {"call": bench_call, "copy": bench_copy}),
        ("vm", {"boot": vm_boot, "shell": vm_shell, "list": vm_list, "stop": vm_stop}),
        ("selftest", {"kvm": selftest_kvm}),
        ("workload", {"new": workload_new, "check": workload_check}),
    ):
        group = Collection(name)
        for member, function in members.items():
            group.add_task(function, name=member)
        every.add_collection(group)
    return every


namespace = _collection()
