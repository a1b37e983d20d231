"""From what a program prints or writes to outcomes by test: pure functions, one a format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from xml.etree import ElementTree

from testbed.experiment.suites.suite import FAILED, PASSED, SKIPPED, Outcome, Outcomes, Output

DETAIL_LENGTH = 120
ANSI = re.compile(r"\x1b\[[0-9;]*m")
# What a process printed is compared without what changes from run to run.
ADDRESS = re.compile(r"0x[0-9a-f]{6,16}")


def end_of(output: Output) -> str:
    """How a program ended, in words."""
    if output.timed_out:
        return "ended at its time limit"
    return f"signal {-output.status}" if output.status < 0 else f"status {output.status}"


def exit_status(output: Output) -> Outcomes:
    """The program is the test: it passes with status 0."""
    status = PASSED if output.status == 0 and not output.timed_out else FAILED
    return {"": Outcome(status, end_of(output), "" if status == PASSED else _last_line(output))}


def expecting(words: str) -> Callable[[Output], Outcomes]:
    """The program is the test: it passes if `words`, a regular expression, match its output."""
    pattern = re.compile(words, re.MULTILINE)

    def parse(output: Output) -> Outcomes:
        found = pattern.search(output.stdout) is not None
        status = PASSED if found and not output.timed_out else FAILED
        return {"": Outcome(status, end_of(output), "" if found else _last_line(output))}

    return parse


def junit(output: Output) -> Outcomes:
    """pytest's XML. An expected failure counts as skipped, as pytest writes it."""
    try:
        root = ElementTree.fromstring(output.result)
    except ElementTree.ParseError:
        return {"": Outcome(FAILED, end_of(output), _last_line(output))}
    outcomes = {}
    for case in root.iter("testcase"):
        name = f"{case.get('classname')}::{ADDRESS.sub('ADDRESS', case.get('name') or '')}"
        outcomes[name] = Outcome(PASSED)
        for kind, status in (("skipped", SKIPPED), ("failure", FAILED), ("error", FAILED)):
            found = case.find(kind)
            if found is not None:
                outcomes[name] = Outcome(status, detail=_short(found.get("message") or ""))
    return outcomes


def piglit(output: Output) -> Outcomes:
    """piglit's results.json; a test with subtests gives an outcome for each."""
    statuses = {"pass": PASSED, "skip": SKIPPED, "notrun": SKIPPED}
    try:
        tests = json.loads(output.result)["tests"]
    except (ValueError, KeyError):
        return {"": Outcome(FAILED, end_of(output), _last_line(output))}
    outcomes = {}
    for name, test in tests.items():
        for part, result in (test.get("subtests") or {}).items():
            if part.startswith("__"):  # piglit's own notes
                continue
            outcomes[f"{name} {part}"] = Outcome(statuses.get(result, FAILED), result)
        result = test["result"]
        detail = "" if result in statuses else _short(_meaningful(test.get("out", "")))
        outcomes[name] = Outcome(statuses.get(result, FAILED), result, detail)
    return outcomes


def clblast(output: Output) -> Outcomes:
    """CLBlast's test clients: numbers of passed, skipped and failed cases of each routine."""
    outcomes: dict[str, Outcome] = {"": exit_status(output)[""]}
    routine = behaviour = ""
    for line in ANSI.sub("", output.stdout).splitlines():
        if found := re.search(r"Starting tests for the '(\w+)' routine", line):
            routine = found[1]
        elif found := re.search(r"Testing '([^']+)' for '([^']+)'", line):
            behaviour = f"{found[1]}, {found[2]}"
        elif found := re.search(r"Pass rate .*: (\d+) passed / (\d+) skipped / (\d+) failed", line):
            passed, _, failed = (int(word) for word in found.groups())
            status = FAILED if failed else PASSED if passed else SKIPPED
            outcomes[f"{routine} {behaviour}"] = Outcome(status, " / ".join(found.groups()))
        elif found := re.search(r"All tests skipped: (.*)", line):
            outcomes[f"{routine} {behaviour}"] = Outcome(SKIPPED, found[1])
    return outcomes


def clpeak(output: Output) -> Outcomes:
    """clpeak: each figure is a test that passes if it is there and above zero."""
    outcomes = {"": exit_status(output)[""]}
    title = ""
    for line in output.stdout.splitlines():
        label, colon, figure = (part.strip() for part in line.partition(":"))
        number = re.match(r"[0-9.]+", figure)
        if line.strip() and not colon:
            title = line.strip()
            if "kipped" in title or "rror" in title:
                outcomes[title] = Outcome(SKIPPED if "kipped" in title else FAILED)
        elif label in ("Platform", "Device", "Driver version", "Compute units", "Clock frequency"):
            outcomes[label] = Outcome(PASSED, figure)
        elif number:
            status = PASSED if float(number[0]) > 0 else FAILED
            outcomes[f"{title}: {label}"] = Outcome(status)
        elif colon:
            outcomes[f"{title}: {label}"] = Outcome(FAILED, figure)
    return outcomes


def clinfo(output: Output) -> Outcomes:
    """`clinfo --raw`: each property is a test, its text the value."""
    outcomes = {"": exit_status(output)[""]}
    for line in output.stdout.splitlines():
        if found := re.match(r"\s*(\[[^\]]*\])?\s*([A-Z][\w ().]*?)(?:\s{2,}|\s*$)(.*)$", line):
            where, name, value = found[1] or "", found[2], found[3].strip()
            # Properties of several platforms or devices have the same name.
            outcomes.setdefault(f"{where} {name}".strip(), Outcome(PASSED, value))
    return outcomes


def lines(pattern: str) -> Callable[[Output], Outcomes]:
    """The lines that match are facts, compared as a whole; the program must end with status 0."""
    wanted = re.compile(pattern)

    def parse(output: Output) -> Outcomes:
        kept = [line.strip() for line in output.stdout.splitlines() if wanted.search(line)]
        end = exit_status(output)[""]
        status = PASSED if end.status == PASSED and kept else FAILED
        return {"": Outcome(status, f"{end.value}: {'; '.join(kept)}", end.detail)}

    return parse


def _short(text: str) -> str:
    first = (text.strip().splitlines() or [""])[0]
    return first if len(first) <= DETAIL_LENGTH else f"{first[: DETAIL_LENGTH - 3]}..."


def _meaningful(text: str) -> str:
    """The first line that speaks of an error, else the last one."""
    said = [line for line in text.splitlines() if line.strip() and "PIGLIT:" not in line]
    wrong = [line for line in said if re.search(r"rror|ailed|xpected|CL_", line)]
    return (wrong or said[-1:] or [""])[0]


def _last_line(output: Output) -> str:
    said = [line for line in (output.stdout + "\n" + output.stderr).splitlines() if line.strip()]
    return _short(said[-1]) if said else "it printed nothing"
