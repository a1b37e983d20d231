"""Suites of others: what is read from their output, which differences are right, a short run."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from testbed.errors import TestbedError
from testbed.experiment.suites import parsers
from testbed.experiment.suites.catalogue import SUITES, find_suites
from testbed.experiment.suites.compare import compare, counts, table
from testbed.experiment.suites.places import needed_libraries
from testbed.experiment.suites.run import Request, require_agreement, run_suites
from testbed.experiment.suites.suite import (
    FAILED,
    FEWER,
    PASSED,
    SKIPPED,
    SKIPS,
    Outcome,
    Output,
    Truth,
)

PASS = Outcome(PASSED)
SKIP = Outcome(SKIPPED)
FAIL = Outcome(FAILED)


def output(stdout: str = "", status: int = 0, result: str = "", stderr: str = "") -> Output:
    return Output(status, False, stdout, stderr, result.encode())


def test_junit() -> None:
    text = """<testsuites><testsuite>
      <testcase classname="m" name="good[0x7f0012345678]"/>
      <testcase classname="m" name="bad"><failure message="one&#10;two"/></testcase>
      <testcase classname="m" name="left"><skipped message="no SVM"/></testcase>
    </testsuite></testsuites>"""
    outcomes = parsers.junit(output(result=text))
    assert outcomes["m::good[ADDRESS]"] == PASS
    assert outcomes["m::bad"] == Outcome(FAILED, detail="one")
    assert outcomes["m::left"].status == SKIPPED
    assert parsers.junit(output(status=-11))[""].value == "signal 11"


def test_piglit_with_subtests() -> None:
    text = """{"tests": {"a": {"result": "pass", "subtests": {
        "__type__": "Subtests", "x": "pass", "y": "fail"}},
        "b": {"result": "crash", "out": "PIGLIT: {}\\nUnexpected CL error: CL_OUT_OF"}}}"""
    outcomes = parsers.piglit(output(result=text))
    assert [outcomes[name].status for name in ("a", "a x", "a y", "b")] == [
        *(PASSED, PASSED, FAILED, FAILED)
    ]
    assert len(outcomes) == 4
    assert outcomes["b"].detail == "Unexpected CL error: CL_OUT_OF"


def test_clblast() -> None:
    text = """* Starting tests for the \x1b[1m'SAXPY'\x1b[0m routine. Legend:
* Testing \x1b[1m'regular behaviour'\x1b[0m for \x1b[1m'default'\x1b[0m:
   Pass rate \x1b[1m 97.2%\x1b[0m: 35 passed / 0 skipped / 1 failed"""
    outcomes = parsers.clblast(output(text, status=1))
    assert outcomes["SAXPY regular behaviour, default"] == Outcome(FAILED, "35 / 0 / 1")
    assert outcomes[""].status == FAILED


def test_clpeak_wants_figures_above_zero() -> None:
    text = """
Platform: P
    Driver version  : 3.1
    Global memory bandwidth (GBPS)
      float   : 11.24
      float2  : 0
    No half precision support! Skipped
    Kernel launch latency : 10.20 us
"""
    outcomes = parsers.clpeak(output(text))
    assert outcomes["Driver version"].value == "3.1"
    assert outcomes["Global memory bandwidth (GBPS): float"] == PASS
    assert outcomes["Global memory bandwidth (GBPS): float2"].status == FAILED
    assert outcomes["No half precision support! Skipped"].status == SKIPPED


def test_clinfo_by_property() -> None:
    text = """#PLATFORMS                    1
  CL_PLATFORM_NAME            Portable
[P/0]    CL_DEVICE_VERSION    OpenCL 3.0
[P/0]    CL_DEVICE_IL_VERSION
"""
    outcomes = parsers.clinfo(output(text))
    assert outcomes["CL_PLATFORM_NAME"].value == "Portable"
    assert outcomes["[P/0] CL_DEVICE_VERSION"].value == "OpenCL 3.0"
    assert outcomes["[P/0] CL_DEVICE_IL_VERSION"].value == ""


def test_a_difference_is_right_only_by_its_rule() -> None:
    native = {"e": Outcome(PASSED, "a b"), "svm": PASS, "x": PASS, "gone": PASS}
    forwarded = {"e": Outcome(PASSED, "b"), "svm": SKIP, "x": FAIL}
    truths = [Truth("e", FEWER, "not forwarded"), Truth("svm|x", SKIPS, "no SVM")]
    done = compare("s", native, forwarded, truths)
    assert [entry.test for entry in done.truthful] == ["e", "svm"]
    assert [entry.test for entry in done.differences] == ["x", "gone"]
    assert counts(done.forwarded) == (1, 1, 1)
    assert "s: DIFFERS: x" in table([done])
    with pytest.raises(TestbedError, match="s 2"):
        require_agreement([done])


def test_more_than_native_is_never_right() -> None:
    truths = [Truth("e", FEWER, "not forwarded")]
    done = compare("s", {"e": Outcome(PASSED, "a")}, {"e": Outcome(PASSED, "a b")}, truths)
    assert len(done.differences) == 1


def test_the_catalogue_is_consistent() -> None:
    assert len({suite.name for suite in SUITES}) == len(SUITES)
    for suite in SUITES:
        names = [step.name for step in suite.steps]
        assert len(set(names)) == len(names)
        assert set(suite.guest) | set(suite.short) <= set(names)
    with pytest.raises(TestbedError, match="no suite 'nothing'"):
        find_suites("clinfo,nothing")
    with pytest.raises(TestbedError, match="no program 'most'"):
        find_suites("clpeak/most")
    [suite] = find_suites("clpeak/all")
    assert [step.name for step in suite.steps] == ["all"]


def test_a_guest_gets_what_extension_modules_need_of_the_system() -> None:
    [module] = Path(numpy.__file__).parent.glob("_core/_multiarray_umath*.so")
    names = {library.name for library in needed_libraries([module])}
    assert "libstdc++.so.6" in names
    assert "libc.so.6" not in names  # every guest's own
    assert not any("openblas" in name for name in names)  # comes with the package
    assert needed_libraries([]) == []


@pytest.mark.opencl
@pytest.mark.native
@pytest.mark.parametrize(
    ("suites", "system"),
    [("clinfo,clpeak,clfft,pyopencl", "wormhole"), ("clinfo,clfft", "tcp-sync")],
)
def test_what_programs_of_others_see_is_native(suites: str, system: str, tmp_path: Path) -> None:
    """Those that ./inv test installs; a property or a figure that is lost is a difference."""
    done, folder = run_suites(Request(suites, system, out=tmp_path, short=True), print)
    assert [entry.differences for entry in done] == [()] * len(done)
    assert all(counts(entry.native)[1] == 0 for entry in done)
    assert (folder / "suites.jsonl").read_text().count("\n") == len(suites.split(","))
