"""`./inv fuzz`: hostile sessions against the worker's code, and what came of them.

The fuzzer itself is C (host_server/fuzz/README.md). Here it is built with the sanitizers, run on
the null backend (fast: the runtime's own calls, ring, TCP) and on the real one, and added up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.machine.double_build import build_double
from testbed.machine.native_build import native_build
from testbed.progress import say
from testbed.root import ROOT

BACKENDS = ("null", "opencl", "cuda")
# Of the messages, where nothing else is asked for: those that have a library are far slower.
SHARES = {"opencl": 0.1, "cuda": 0.2}
START_LIMIT_S = 300.0
MESSAGES_PER_S_MIN = 100.0
SEEDS = ROOT / "host_server" / "fuzz" / "seeds.txt"
SUMMED = (
    *("messages", "sent", "sessions", "clean", "refused", "blocked"),
    *("backend_crashes", "findings", "neighbour_answers"),
)


@dataclass(frozen=True)
class Seed:
    """A session that failed once."""

    backend: str
    seed: int
    session: int


def read_seeds(path: Path = SEEDS) -> list[Seed]:
    """The seeds that ever failed; lines of backend, seed, session and what it was."""
    lines = [line.split("#")[0].split() for line in path.read_text().splitlines()]
    return [Seed(words[0], int(words[1]), int(words[2])) for words in lines if words]


def fuzz_once(backend: str, arguments: Sequence[str], messages: int) -> dict[str, Any]:
    """One run of the C program; its result, with the findings' text under "report"."""
    program = native_build("address", tests=True).fuzz
    with tempfile.TemporaryDirectory(prefix="wormhole-fuzz-") as folder:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "ASAN_OPTIONS": "detect_leaks=0:exitcode=99:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=99",
            # Without threads of its own, so that a session can be a fork of the loaded state.
            "POCL_DEVICES": "basic",
            "POCL_CACHE_DIR": f"{folder}/pocl",
            "TMPDIR": folder,
        }
        if backend == "cuda":
            double = build_double(Path(folder), mathematical=True)
            environment |= double.variables()
            arguments = ["--code", str(double.code), *arguments]
        try:
            done = subprocess.run(
                [str(program), "--backend", backend, *arguments],
                env=environment,
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=START_LIMIT_S + messages / MESSAGES_PER_S_MIN,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TestbedError(
                f"the fuzzer took longer than {error.timeout:.0f} s on {backend}",
                "give fewer --messages",
            ) from error
    if done.returncode not in (0, 1):
        raise TestbedError(
            f"the fuzzer ended with status {done.returncode}: {done.stderr[-500:].strip()}",
            "the same --seed does the same again; host_server/fuzz/README.md says how",
        )
    result: dict[str, Any] = json.loads(done.stdout)
    result["report"] = done.stderr
    return result


def run_fuzz(messages: int, seed: int, backend: str, as_json: bool, stream: str = "") -> None:
    """Fuzz, print what happened; TestbedError on a finding."""
    if backend and backend not in BACKENDS:
        raise TestbedError(f"there is no backend {backend!r}", f"use one of {', '.join(BACKENDS)}")
    shares = {backend: messages} if backend else shares_of(messages)
    more = ["--stream", str(Path(stream).absolute())] if stream else []
    results = []
    for name, count in shares.items():
        say(f"fuzz: {count} messages on {name}, seed {seed}")
        arguments = ["--messages", str(count), "--seed", str(seed), *more]
        results.append(fuzz_once(name, arguments, count))
    totals = added(results)
    if as_json:
        print(json.dumps(totals, indent=2))
    else:
        print(table(totals))
    for result in results:
        if result["findings"]:
            print(result["report"][-8000:], file=sys.stderr)
    if totals["findings"]:
        raise TestbedError(
            f"{totals['findings']} findings; the sessions that show them are named above",
            "mend the fault and add its line to host_server/fuzz/seeds.txt",
        )


def shares_of(messages: int) -> dict[str, int]:
    """How many messages each backend gets."""
    shares = {name: int(messages * share) for name, share in SHARES.items()}
    return {"null": messages - sum(shares.values()), **shares}


def added(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sum of several runs; functions as [executed, succeeded, malformed]."""
    functions: dict[str, Counter[int]] = {}
    for result in results:
        for name, counts in result["opcodes"].items():
            functions.setdefault(name, Counter()).update(dict(enumerate(counts)))
    totals: dict[str, Any] = {key: sum(result[key] for result in results) for key in SUMMED}
    totals["functions"] = {name: [c[0], c[1], c[2]] for name, c in functions.items()}
    return totals


def table(totals: dict[str, Any]) -> str:
    """The sum as text: how sessions ended, and which functions were never reached."""
    functions: dict[str, list[int]] = totals["functions"]
    executed = [name for name, counts in functions.items() if counts[0] > 0]
    succeeded = [name for name, counts in functions.items() if counts[1] > 0]
    lines = [f"{key.replace('_', ' '):18} {totals[key]:>12}" for key in SUMMED]
    lines.append(
        f"functions          {len(executed):>12} of {len(functions)} executed, "
        f"{len(succeeded)} with success"
    )
    never = sorted(set(functions) - set(succeeded))
    if never:
        lines.append("never with success: " + ", ".join(never))
    return "\n".join(lines)
