"""The differential suite: how outcomes are judged, and that forwarded calls end as native ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.experiment.differential import (
    compare,
    device_vendor,
    is_death,
    may_differ,
    outcomes,
    run_differential,
    text_of,
)
from testbed.protocol.emit_cases import header_queries
from testbed.protocol.spec import load_api

# Quick groups of every kind: queries, creation, transfers, events; and all that is written by hand.
WRITTEN = ("order", "data", "lifetimes")
GROUPS = (
    *("clGetContextInfo", "clCreateUserEvent", "clCreateSubBuffer", "clCreateKernelsInProgram"),
    *("clEnqueueCopyBuffer", "clEnqueueFillBuffer", "clSetKernelArg", "clRetainKernel", *WRITTEN),
    *("clEnqueueUnmapMemObject", "clEnqueueWriteImage", "clSetProgramSpecializationConstant"),
)


def test_a_line_is_group_case_and_outcome() -> None:
    assert outcomes("clFlush\tbaseline\t0 a=1\n") == {("clFlush", "baseline"): "0 a=1"}


def test_what_differs_is_a_disagreement_with_both_values() -> None:
    done = compare({("clFlush", "baseline"): "0"}, {("clFlush", "baseline"): "-36"})
    assert done.agreed == 0
    assert "clFlush: baseline" in text_of(done)
    assert "native     0" in text_of(done)
    assert "forwarded  -36" in text_of(done)


def test_a_case_that_was_not_run_is_a_disagreement() -> None:
    assert len(compare({("clFlush", "baseline"): "0"}, {}).disagreements) == 1


def test_where_native_dies_a_forwarder_must_only_go_on() -> None:
    case = ("clFlush", "baseline")
    assert is_death("killed by signal 11")
    assert not is_death("0 event=NULL")
    assert compare({case: "killed by signal 11"}, {case: "-36"}).undefined == 1
    assert compare({case: "killed by signal 11"}, {case: "hang"}).undefined == 0


def test_a_rule_of_the_spec_covers_its_query_alone() -> None:
    function = next(f for f in load_api("opencl").functions if f.differs)
    name = function.differs[0][0]
    assert may_differ(function, f"device {name} exact")
    assert not may_differ(function, "baseline")
    assert not may_differ(None, "anything")


def test_the_headers_queries_are_found() -> None:
    text = "/* cl_event_info */\n#define CL_EVENT_ONE  0x11D0\n/* cl_other */\n#define CL_TWO 0x1\n"
    assert header_queries(text) == {"cl_event_info": ["CL_EVENT_ONE"]}


def test_an_unknown_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="no OpenCL library of this machine is called"):
        device_vendor("none", tmp_path)


@pytest.mark.native
@pytest.mark.opencl
@pytest.mark.parametrize("system", ["wormhole", "tcp-sync"])
def test_forwarded_calls_end_as_native_ones(system: str) -> None:
    done = run_differential("process", system, groups=GROUPS)
    assert done.cases > 100
    assert not done.disagreements, text_of(done)


@pytest.mark.vm
@pytest.mark.native
@pytest.mark.opencl
def test_calls_of_a_guest_end_as_native_ones() -> None:
    done = run_differential("guest", "wormhole", groups=("clCreateSubBuffer", *WRITTEN))
    assert done.cases > 20
    assert not done.disagreements, text_of(done)
