"""The executor with real host programs and made-up guests: life cycles, environment, leftovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import TestbedError
from testbed.experiment.executor import Executor, RunningGuest, Settings
from testbed.experiment.outcome import Attempt, HostTime
from testbed.experiment.plan import Trial, make_plan
from testbed.experiment.prepare import Bundle
from testbed.experiment.runner import TrialFiles
from testbed.experiment.subject import Recorded, Subject
from testbed.experiment.workload import Command, find_workload
from testbed.tests.experiments import example

PROGRAM = """\
import json, os, time
print("chatter")
for step in range(4):
    time.sleep(0.01)
    print(json.dumps({"event": "step", "step": step, "t_ns": time.monotonic_ns()}))
names = sorted(os.environ)
print(json.dumps({"event": "end", "names": names}))
"""


@dataclass(frozen=True)
class FakeNative:
    worker: Path = Path("worker")
    library: Path = Path("library.so")
    replay: Path = Path("replay")
    cuda: Path = Path("cuda")
    cuda_runtime: Path = Path("cuda/libwormhole_cuda.so")


def subject(folder: Path, code: str = PROGRAM) -> Subject:
    (folder / "program.py").write_text(code)
    task = Command(argv=("python3", "{dir}/program.py"), files=(), step_pattern=None)
    workload = replace(
        find_workload("lenet-digits"), task=task, steps=4, warmup_steps=1, environment=()
    )
    bundle = Bundle(workload, folder, "key", "")
    return Subject(workload, bundle, None, Recorded(folder / "record", 10, "hash"))


def settings(folder: Path, boot: Any = None, code: str = PROGRAM) -> Settings:
    both = subject(folder, code)
    subjects = {"lenet-digits": both, "lenet-digits-b8": both}
    return Settings(FakeNative(), subjects, "tcg", boot)


def native_trial(timeout_s: int = 20) -> Trial:
    plan = make_plan(example(), "tcg", ["process"])
    found = next(t for t in plan if t.form == "application" and t.system.is_native)
    return replace(found, timeout_s=timeout_s)


@pytest.fixture
def files(tmp_path: Path) -> TrialFiles:
    (tmp_path / "logs").mkdir()
    return TrialFiles(tmp_path / "logs")


def test_a_native_trial_runs_measures_and_sees_nothing_of_our_environment(
    tmp_path: Path, files: TrialFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORMHOLE_SERVER", "unix:/nowhere")
    monkeypatch.setenv("OCL_ICD_VENDORS", "/nowhere")
    outcome = Executor(settings(tmp_path)).run(native_trial(), files)
    assert outcome.result.status == "ok", outcome.result.detail
    speed = outcome.result.metrics["steps_per_s"]
    assert isinstance(speed, float) and 0 < speed <= 101
    (end,) = [event for event in outcome.events if event["event"] == "end"]
    assert not [name for name in end["names"] if name.startswith(("WORMHOLE_", "OCL_"))]
    assert set(outcome.noise) >= {"noisy", "foreign_share", "steal_share", "busy_before_cores"}


def test_a_hung_trial_is_a_timeout(tmp_path: Path, files: TrialFiles) -> None:
    code = "import time; time.sleep(60)"
    outcome = Executor(settings(tmp_path, code=code)).run(native_trial(timeout_s=1), files)
    assert outcome.result.status == "timeout"


@dataclass
class FakeGuest:
    """Counts what is done with it."""

    name: str
    log: list[str]
    server: Any = field(default_factory=lambda: FakeServer())
    accelerator: str = "tcg"
    deployed: set[str] = field(default_factory=set)

    def deploy(self, subject: Subject, form: str) -> None:
        self.deployed.add(form)

    def run(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        timeout_s: float,
        logs: Path,
        host_python: bool = False,
    ) -> Attempt:
        assert not host_python, "a replay is no Python program"
        self.log.append(f"run {environment['WORMHOLE_SERVER']}")
        assert argv[0] == "/opt/wormhole/bin/wormhole-replay"
        assert "replay" in self.deployed
        self.server.ended.append({"user_s": 1.0, "system_s": 0.0, "spin_us": 50})
        steps = [{"event": "step", "step": step, "t_ns": 1000 * (step + 1)} for step in range(4)]
        result = {"event": "result", "calls": 10, "compared_bytes": 10, "mismatches": 0}
        return Attempt(0, False, 1.0, 0.0, 1, 1.0, "guest", [*steps, result])

    def host_times(self) -> list[HostTime]:
        return [HostTime("vm", float(len(self.log)), 0.0)]

    def close(self) -> None:
        self.log.append(f"close {self.name}")


@dataclass
class FakeServer:
    """A host server that records a session when a guest says so."""

    ended: list[dict[str, Any]] = field(default_factory=list)
    tcp_port: int = 4711
    guest_host: str = "198.18.0.1"
    network: str = "tap"
    token: str = "secret"

    def check_alive(self) -> None:
        pass

    def sessions(self) -> list[dict[str, Any]]:
        return list(self.ended)

    def wait_sessions(self, count: int, timeout_s: float = 1.0) -> list[dict[str, Any]]:
        assert len(self.ended) >= count
        return list(self.ended)


def test_one_guest_a_round_and_none_left(tmp_path: Path, files: TrialFiles) -> None:
    log: list[str] = []

    def boot(name: str) -> RunningGuest:
        log.append(f"boot {name}")
        return FakeGuest(name, log)

    executor = Executor(settings(tmp_path, boot))
    plan = make_plan(example(), "tcg", ["guest"])
    outcomes = [executor.run(trial, files) for trial in plan]
    executor.close()
    executor.close()
    assert {outcome.result.status for outcome in outcomes} == {"ok"}
    rounds = ["w01", "r01", "r02", "r03"]
    lives = [line for line in log if not line.startswith("run")]
    assert lives == [f"{verb} replay/{k}" for k in rounds for verb in ("boot", "close")]
    servers = {line for line in log if line.startswith("run")}
    assert servers == {"run device:/dev/wormhole0", "run tcp:198.18.0.1:4711"}
    metrics = outcomes[0].result.metrics
    assert (metrics["vm_user_s"], metrics["worker_user_s"], metrics["sessions"]) == (1.0, 1.0, 1)


def test_a_guest_that_hung_or_broke_gets_no_further_trial(
    tmp_path: Path, files: TrialFiles
) -> None:
    log: list[str] = []
    faults: list[Any] = [TestbedError("the guest is gone"), "hang", None]
    deploys: list[Any] = [TestbedError("no answer"), None, None, None]

    class Faulty(FakeGuest):
        def deploy(self, subject: Subject, form: str) -> None:
            super().deploy(subject, form)
            if fault := deploys.pop(0):
                raise fault

        def run(
            self,
            argv: Sequence[str],
            environment: Mapping[str, str],
            timeout_s: float,
            logs: Path,
            host_python: bool = False,
        ) -> Attempt:
            attempt = super().run(argv, environment, timeout_s, logs)
            fault = faults.pop(0)
            if isinstance(fault, TestbedError):
                raise fault
            return replace(attempt, timed_out=fault == "hang")

    def boot(name: str) -> RunningGuest:
        log.append("boot")
        return Faulty(name, log)

    executor = Executor(settings(tmp_path, boot))
    first, second, third = make_plan(example(), "tcg", ["guest"])[:3]
    with pytest.raises(TestbedError, match="no answer"):
        executor.run(first, files)
    with pytest.raises(TestbedError, match="the guest is gone"):
        executor.run(first, files)
    assert executor.run(second, files).result.status == "timeout"
    assert executor.run(third, files).result.status == "ok"
    executor.close()
    lives = [line.split()[0] for line in log if not line.startswith("run")]
    assert lives == ["boot", "close"] * 4


def test_a_cuda_program_in_a_guest_runs_on_the_hosts_python_with_our_libraries(
    tmp_path: Path, files: TrialFiles
) -> None:
    seen: list[tuple[Sequence[str], Mapping[str, str], bool]] = []

    class Guest(FakeGuest):
        def run(
            self,
            argv: Sequence[str],
            environment: Mapping[str, str],
            timeout_s: float,
            logs: Path,
            host_python: bool = False,
        ) -> Attempt:
            seen.append((argv, environment, host_python))
            self.server.ended.append({"user_s": 1.0, "system_s": 0.0, "spin_us": 50})
            return Attempt(0, False, 1.0, 0.0, 1, 1.0, "guest", [])

    parts = FakeNative(cuda=tmp_path / "cuda", cuda_runtime=tmp_path / "cuda/libwormhole_cuda.so")
    parts.cuda.mkdir()
    for name in ("libcudart.so.13", "libwormhole_cuda.so"):
        (parts.cuda / name).touch()
    plain = subject(tmp_path)
    task = plain.workload.task
    assert isinstance(task, Command)
    trial = replace(make_plan(example(), "tcg", ["guest"])[0], form="application")
    for host_python in (True, False):
        task = replace(task, api="cuda", host_python=host_python)
        workload = replace(plain.workload, task=task)
        bundle = replace(plain.bundle, workload=workload)
        subjects = {trial.workload.label: replace(plain, workload=workload, bundle=bundle)}
        executor = Executor(Settings(parts, subjects, "tcg", lambda name: Guest(name, [])))
        executor.run(trial, files)
        executor.close()
    (argv, environment, on_host), (other, _, in_guest) = seen
    assert (argv[0], on_host) == (sys.executable, True)
    assert (other[0], in_guest) == ("python3", False)
    folder = "/opt/wormhole/lib/cuda"
    assert environment["LD_LIBRARY_PATH"] == folder
    assert environment["LD_PRELOAD"] == f"{folder}/libcudart.so.13:{folder}/libwormhole_cuda.so"
    assert environment["WORMHOLE_MARK_LIB"] == f"{folder}/libwormhole_cuda.so"


def test_a_guest_where_none_can_be_booted_is_a_clear_error(
    tmp_path: Path, files: TrialFiles
) -> None:
    trial = make_plan(example(), "tcg", ["guest"])[0]
    with pytest.raises(TestbedError, match="needs a guest, and none can be booted"):
        Executor(settings(tmp_path)).run(trial, files)


def test_killing_the_runner_leaves_no_program(tmp_path: Path) -> None:
    """kill -9 of the process that runs a trial takes the trial's program with it."""
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from testbed.experiment.executor import Executor
        from testbed.experiment.runner import TrialFiles
        from testbed.tests.test_executor import native_trial, settings
        folder = Path(sys.argv[1])
        code = "import os, time; print(os.getpid(), flush=True); time.sleep(120)"
        Executor(settings(folder, code=code)).run(native_trial(100), TrialFiles(folder))
        """
    )
    runner = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    try:
        pid = int(wait_for(lambda: (tmp_path / "stdout.log").read_text()))
        assert state(pid)
        os.kill(runner.pid, signal.SIGKILL)
        wait_for(lambda: "gone" if not state(pid) else "")
    finally:
        runner.kill()
        runner.wait(10)


def wait_for(look: Any, limit_s: float = 30.0) -> str:
    """The first non-empty text that `look` gives; fails after the limit."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        try:
            text = str(look())
        except OSError:
            text = ""
        if text.strip():
            return text
        time.sleep(0.05)
    raise AssertionError(f"nothing within {limit_s} s")


def state(pid: int) -> str:
    """A process's state letter, or nothing if it has ended."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    return "" if letter in "ZX" else letter


def test_names_of_events_are_json(tmp_path: Path, files: TrialFiles) -> None:
    outcome = Executor(settings(tmp_path)).run(native_trial(), files)
    assert json.loads(json.dumps(outcome.events)) == list(outcome.events)
