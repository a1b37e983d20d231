"""`./inv model`: checks the sleep protocol against every interleaving, and that the check can fail.

spin (a Debian package) turns testbed/protocol/model/sleep.pml into a program that visits every
state.
What the model says is kept beside the C by fingerprints: model/sources.yaml holds one for every
function that the model stands for, and a test fails when a function is no longer the one modelled.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from testbed.errors import TestbedError
from testbed.progress import say
from testbed.root import ROOT

MODEL_DIR = ROOT / "testbed" / "protocol" / "model"
MODEL = MODEL_DIR / "sleep.pml"
SOURCES = MODEL_DIR / "sources.yaml"

STEP_LIMIT_S = 600.0
DEPTH_MAX = 100_000
MEMORY_MIB_MAX = 2048
#: What the checking program is built with: no cycles to look for, and states in little memory.
PAN_FLAGS = ("-O1", "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MIB_MAX}")


@dataclass(frozen=True)
class Case:
    """One run of the checker. `left_out`: a step of the protocol, whose absence must be noticed."""

    scenario: int
    driver: bool = False
    left_out: str = ""

    @property
    def name(self) -> str:
        """What a table calls it."""
        sleeper = "driver" if self.driver else "eventfd"
        return f"scenario {self.scenario}, {sleeper}" + (
            f", without {self.left_out}" if self.left_out else ""
        )

    def definitions(self) -> list[str]:
        """The preprocessor's."""
        found = [f"-DSCENARIO={self.scenario}"]
        found += ["-DDRIVER"] if self.driver else []
        return [*found, f"-DWITHOUT_{self.left_out}"] if self.left_out else found


#: The protocol as it is. Scenario 2 leaves out how clients sleep, so it has no second form.
WHOLE = (Case(1), Case(1, driver=True), Case(2), Case(3), Case(3, driver=True))

#: Each step that the protocol cannot do without, and a scenario that shows it.
CONTROLS = (
    Case(1, left_out="CLIENT_FENCE"),
    Case(1, left_out="WORKER_FENCE"),
    Case(2, left_out="WORKER_RECHECK"),
    Case(2, left_out="RELAY"),
    Case(2, left_out="FOLLOWER"),
    Case(2, left_out="ORDER"),
    Case(1, left_out="REPLY_FENCE"),
    Case(1, left_out="CLIENT_WAIT_FENCE"),
    Case(1, left_out="CLIENT_RECHECK"),
    Case(1, driver=True, left_out="SEQUENCE"),
    Case(3, left_out="SPACE_FENCE"),
    Case(3, driver=True, left_out="COUNT"),
)


@dataclass(frozen=True)
class Verdict:
    """What the checker found. `stuck`: somebody waits for ever in a reachable state."""

    case: str
    stuck: bool
    expected_stuck: bool
    states: int
    seconds: float

    @property
    def right(self) -> bool:
        """Whether that is what had to come out."""
        return self.stuck == self.expected_stuck


def run_model(as_json: bool) -> None:
    """Check the protocol and the negative controls; TestbedError if one comes out wrong."""
    verdicts = []
    for verdict in check_all((*WHOLE, *CONTROLS)):
        verdicts.append(verdict)
        if not as_json:
            found = "a wait that never ends" if verdict.stuck else "every wait ends"
            say(f"{verdict.case}: {found}, {verdict.states} states, {verdict.seconds:.1f} s")
    if as_json:
        print(json.dumps([{**asdict(v), "right": v.right} for v in verdicts], indent=2))
    wrong = [verdict.case for verdict in verdicts if not verdict.right]
    if wrong:
        raise TestbedError(
            f"the model of the sleep protocol: wrong in {'; '.join(wrong)}",
            f"see {MODEL_DIR / 'README.md'} for how to show the steps that lead there",
        )


def check_all(cases: tuple[Case, ...]) -> Iterator[Verdict]:
    """Run the checker on each case."""
    for program in ("spin", "gcc"):
        if shutil.which(program) is None:
            raise TestbedError(
                f"the model checker needs {program}, which is not installed",
                f"apt-get install {program}",
            )
    for case in cases:
        begin_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="wormhole-model-") as folder:
            shown = _check(case, Path(folder))
        errors = re.search(r"errors: (\d+)", shown)
        states = re.search(r"(\d+) states, stored", shown)
        stuck = errors is not None and errors[1] != "0"
        complete = "Search not completed" not in shown and "max search depth" not in shown
        if errors is None or states is None or not (stuck or complete):
            raise TestbedError(f"the model checker gave up on {case.name}", shown[-500:])
        seconds = time.monotonic() - begin_s
        yield Verdict(case.name, stuck, bool(case.left_out), int(states[1]), seconds)


def _check(case: Case, folder: Path) -> str:
    """What the checking program printed."""
    _run(["spin", "-a", *case.definitions(), str(MODEL)], folder)
    _run(["gcc", *PAN_FLAGS, "-o", "pan", "pan.c"], folder)
    return _run(["./pan", f"-m{DEPTH_MAX}"], folder)


def _run(argv: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            argv, cwd=folder, capture_output=True, text=True, timeout=STEP_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise TestbedError(
            f"{argv[0]} took longer than {STEP_LIMIT_S:.0f} s", "let nothing else run beside it"
        ) from None
    if done.returncode != 0:
        raise TestbedError(
            f"{argv[0]} failed on {MODEL}", f"it said: {(done.stdout + done.stderr)[-500:]}"
        )
    return done.stdout


# The C beside the model.


def function_text(source: str, name: str) -> str:
    """A C function's definition without comments and layout. KeyError if there is none."""
    without_comments = re.sub(r"/\*.*?\*/", " ", source, flags=re.DOTALL)
    found = re.search(
        rf"^[a-z][^\n;{{}}()=]*\b{name}\([^;{{}}]*\)\s*\n?{{.*?^}}",
        without_comments,
        flags=re.DOTALL | re.MULTILINE,
    )
    if found is None:
        raise KeyError(name)
    return " ".join(found[0].split())


def modelled() -> dict[str, dict[str, str]]:
    """File -> function -> the fingerprint that the model was written for."""
    known: dict[str, dict[str, str]] = yaml.safe_load(SOURCES.read_text(encoding="utf-8"))
    return known


def fingerprint(file: str, name: str) -> str:
    """Of the function as it is now."""
    text = function_text((ROOT / file).read_text(encoding="utf-8"), name)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changed() -> list[str]:
    """Functions that are no longer the ones that were modelled."""
    return [
        f"{file}: {name}"
        for file, functions in modelled().items()
        for name, recorded in functions.items()
        if fingerprint(file, name) != recorded
    ]


def renew() -> list[str]:
    """Record the functions as they are: the model was compared with them. Returns the changed."""
    fresh = changed()
    head = SOURCES.read_text(encoding="utf-8").split("\n\n", 1)[0]
    lines = [head, ""]
    for file, functions in modelled().items():
        lines.append(f"{file}:")
        lines += [f"  {name}: '{fingerprint(file, name)}'" for name in functions]
    SOURCES.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return fresh
