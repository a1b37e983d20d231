"""The division of forwarded calls' time: from the rows at two marks to parts that add up."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from testbed.analysis.breakdown import (
    CLIENT,
    WORKER,
    by_part,
    collect,
    divide,
    extra_share,
    opcode_names,
)
from testbed.analysis.samples import load_run
from testbed.experiment.events import json_objects, read_json_objects
from testbed.experiment.plan import make_plan
from testbed.experiment.prepare import prepare
from testbed.experiment.recording import record_bundle
from testbed.experiment.replaying import _host_environment
from testbed.experiment.systems import system
from testbed.experiment.workload import find_workload
from testbed.machine.native_build import native_build
from testbed.protocol.wire import constant
from testbed.tests.experiments import TEXT, example

NAMES = {1: "one", 2: "two", 12: "whTimes"}
INSTRUMENTED = TEXT.replace("    rounds: 3\n", "    rounds: 3\n    instrument: breakdown\n")


def client(opcode: int, **values: int) -> list[int]:
    return [opcode, *(values.get(name, 0) for name in CLIENT)]


def worker(opcode: int, **values: int) -> list[int]:
    return [opcode, *(values.get(name, 0) for name in WORKER)]


def times(step: int, mine: Any, theirs: Any, transport: str = "shm") -> dict[str, Any]:
    return {
        "source": "stub",
        "event": "times",
        "label": f"step {step}",
        "transport": transport,
        "client": mine,
        "worker": theirs,
    }


def steps(count: int) -> list[dict[str, Any]]:
    return [
        {"source": "program", "event": "step", "step": n, "t_ns": 1000 * (n + 1)}
        for n in range(count)
    ]


def test_a_wait_is_divided_and_only_the_measured_steps_count() -> None:
    before = worker(1, messages=5, answered=5, answered_time=500, take=500)
    events = [
        *steps(3),
        times(0, [], []),
        times(1, [client(1, calls=5, waits=5, wait=900)], [before]),
        times(
            2,
            [client(1, calls=6, stub=40, waits=6, wait=1900, busy=700, sends=0)],
            [
                worker(
                    *(1,),
                    messages=6,
                    answered=6,
                    answered_time=900,
                    take=600,
                    backend=250,
                    kernel=30,
                    encode=20,
                    send=50,
                )
            ],
        ),
    ]
    found = divide(events, 2, NAMES)
    # 1000 of wait: 700 in which the worker worked, 400 of them for this call; 50 to reply.
    assert found == {
        ("one", "encode"): (1, 40),
        ("one", "publish"): (1, 250),
        ("one", "queue"): (1, 300),
        ("one", "take"): (1, 100),
        ("one", "backend"): (1, 250),
        ("one", "kernel"): (1, 30),
        ("one", "reply"): (1, 70),
    }


def test_over_tcp_the_worker_own_time_is_taken_off_the_wait() -> None:
    events = [
        *steps(2),
        times(0, [], [], "tcp"),
        times(
            1,
            [client(2, waits=1, wait=1000), client(12, waits=9, wait=9999)],
            [worker(2, messages=1, answered=1, answered_time=300, backend=300)],
            "tcp",
        ),
    ]
    found = divide(events, 1, NAMES)
    assert found == {("two", "publish"): (1, 700), ("two", "backend"): (1, 300)}


def test_a_trial_without_rows_has_no_parts() -> None:
    assert divide(steps(3), 1, NAMES) == {}
    assert divide([], 1, NAMES) == {}
    assert divide([*steps(3), times(0, [], [])], 1, NAMES) == {}


def test_opcodes_fit_the_rows() -> None:
    names = opcode_names()
    assert names[12] == "whTimes"
    assert max(names) < constant("times_opcodes")


def test_every_forwarded_trial_of_an_instrumented_part_runs_twice() -> None:
    plan = [t for t in make_plan(example(INSTRUMENTED), "tcg", ["process"]) if t.part == "replay"]
    plain = {(t.round, t.system.name) for t in plan if not t.instrument}
    twice = {(t.round, t.system.name) for t in plan if t.instrument == "breakdown"}
    assert twice == {cell for cell in plain if cell[1] != "native"}
    assert len({t.id for t in plan}) == len(plan)


def test_the_instrument_has_to_be_known() -> None:
    with pytest.raises(Exception, match="instrument"):
        example(INSTRUMENTED.replace("breakdown", "breakdwon"))


def test_instrumented_trials_have_parts_and_no_speed(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    rows = [
        times(0, [], []),
        times(
            1,
            [client(1, calls=2, stub=100)],
            [worker(1, messages=2, backend=300)],
        ),
    ]
    trials = []
    for number, instrument in enumerate(("", "breakdown")):
        name = f"events-{number}.jsonl"
        slower = [{**step, "t_ns": step["t_ns"] * (1 + number)} for step in steps(2)]
        lines = [*slower, *(rows if instrument else [])]
        (tmp_path / name).write_text("".join(json.dumps(e) + "\n" for e in lines), "utf-8")
        trials.append(
            {
                "id": f"t{number}",
                "part": "p",
                "form": "replay",
                "workload": "w",
                "system": "wormhole",
                "placement": "process",
                "round": 1,
                "warmup": False,
                "status": "ok",
                "warmup_steps": 1,
                "instrument": instrument,
                "events": name,
            }
        )
    (tmp_path / "trials.jsonl").write_text("".join(json.dumps(t) + "\n" for t in trials), "utf-8")
    entries, overheads = collect(tmp_path)
    assert by_part(entries) == {"encode": 1e-7, "backend": 3e-7}
    assert extra_share(by_part(entries)) == pytest.approx(0.25)
    assert [o.ratio for o in overheads] == [2.0]
    assert [s.id for group in load_run(tmp_path).groups for s in group.samples] == ["t0"]


@pytest.mark.opencl
@pytest.mark.native
@pytest.mark.parametrize("name", ["wormhole", "tcp-sync"])
def test_a_real_replay_is_divided(name: str, tmp_path: Path) -> None:
    recorded = record_bundle(prepare(find_workload("mlp-digits").resized(steps=12)))
    native, stats = native_build(), tmp_path / "stub.jsonl"
    with _host_environment(system(name), native, tmp_path, stats) as environment:
        done = subprocess.run(
            [native.replay, recorded.path, "--json"],
            env={**environment, "WORMHOLE_INSTRUMENT": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    program = [{"source": "program", **event} for event in json_objects(done.stdout)]
    stub = [{"source": "stub", **event} for event in read_json_objects(stats)]
    found = divide([*program, *stub], 2, opcode_names())
    launches = recorded.functions["clEnqueueNDRangeKernel"] * 10 // 12
    for part in ("encode", "publish", "take", "backend", "reply"):
        assert found["clEnqueueNDRangeKernel", part][0] == launches, part
    assert found["clFinish", "kernel"][0] == 10
    assert not any(function == "whTimes" for function, _ in found)
