"""However a run ends on the host: one clear line, an honest status, and nothing left behind."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.analysis.rundir import read_lines
from testbed.root import ROOT
from testbed.tests.ends import (
    RUN_LIMIT_S,
    WORKER,
    Ended,
    Ends,
    children,
    stat_fields,
    wait_until,
    watching,
)

EXPERIMENT = """\
name: ends
seed: 11
baseline: tcp-sync
systems: [wormhole, tcp-sync]
trial_timeout_s: 120
parts:
  - form: replay
    workloads: [lenet-digits]
    placements: [process]
    rounds: 3
"""
TRIALS = 6

#: What `./inv run` says on its way, so that signals come in each of its phases.
PHASES = ("results go to", "native code", "process placement: ", "[1/6]", "[3/6]")

# They run ./inv itself, each for seconds: too slow for `./inv check`.
pytestmark = [pytest.mark.native, pytest.mark.opencl]

INTERRUPTS = 12
DELAY_MAX_S = 1.5


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    with watching(tmp_path) as started:
        yield started


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "ends.yaml"
    path.write_text(EXPERIMENT)
    return path


def run_directory(out: Path) -> Path:
    """The one run that an experiment left under `--out`."""
    (run,) = (out / "ends").iterdir()
    return run


def trials(run: Path) -> list[dict[str, object]]:
    return list(read_lines(run / "trials.jsonl"))


class TestWords:
    """Wrong words on the command line or in a file."""

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ("rnu", "did you mean run?"),
            ("run", "experiment"),
            ("run quick --wrong", "./inv run --help"),
            ("exec --timeout-s soon -- true", "'soon'"),
            ("run nosuch --out {out}", "quick, spin"),
            ("run quick --out {out} --placement nosuch", "nosuch"),
            ("run quick --resume /tmp", "/tmp is not a run directory"),
            ("plot /tmp", "/tmp is not a run directory"),
            ("plot inv", "inv is not a run directory"),
            ("exec --system nosuch -- true", "wormhole-notify"),
            ("exec --placement nosuch -- true", "process, guest"),
            ("exec -- /no/such/program", "/no/such/program"),
            ("exec", "./inv exec --system wormhole -- clinfo"),
            ("replay inv", "inv is no recording"),
            ("replay /no/such/file", "/no/such/file"),
            ("record", "./inv record -- PROGRAM"),
            ("record --workload nosuch", "lenet-digits"),
            ("bench.call --placement nosuch", "nosuch"),
            ("workload.check nosuch", "lenet-digits"),
            ("vm.stop --name nosuch", "./inv vm.boot"),
            ("vm.shell --name nosuch", "./inv vm.boot"),
            ("vm.boot --name ../x", "'../x' is no name"),
            ("top --once --interval 0.1", "0.6 to 3600"),
            ("serve --system native", "a system that forwards"),
            ("serve --system nosuch", "wormhole-sync"),
            ("plot /no/such/run", "results/<experiment>"),
        ],
    )
    def test_a_wrong_word_is_named_with_what_is_right(
        self, ends: Ends, tmp_path: Path, arguments: str, said: str
    ) -> None:
        out = tmp_path / "results"
        assert said in ends.run(*arguments.format(out=out).split()).error()
        assert not out.exists()

    def test_a_wrong_key_in_an_experiment(self, ends: Ends, experiment: Path) -> None:
        experiment.write_text(EXPERIMENT.replace("baseline:", "basline:"))
        error = ends.run("run", experiment, "--out", experiment.parent / "out").error()
        assert f"{experiment}:3" in error
        assert "basline" in error and "`baseline`" in error

    def test_a_wrong_key_in_a_workload(self, ends: Ends, tmp_path: Path) -> None:
        text = (ROOT / "workloads" / "lenet-digits.yaml").read_text()
        line = text.splitlines().index("batch: 8") + 1
        path = tmp_path / "lenet-digits.yaml"
        path.write_text(text.replace("\nbatch: 8", "\nbacth: 8"))
        error = ends.run("workload.check", path).error()
        assert f"{path}:{line}" in error
        assert "bacth" in error and "`batch`" in error


class TestSignals:
    """Ctrl-C and its like, at any moment of a run."""

    @pytest.mark.parametrize("phase", PHASES)
    def test_ctrl_c_in_each_phase(self, ends: Ends, experiment: Path, phase: str) -> None:
        out = experiment.parent / "out"
        running = ends.start("run", experiment, "--out", out)
        running.wait_for(phase)
        running.signal_group(signal.SIGINT)
        ended = running.end()
        assert "SIGINT" in ended.error()
        assert ended.status == 130
        run = run_directory(out)
        assert f"--resume {run}" in ended.err
        assert json.loads((run / "manifest.json").read_text())["state"] == "stopped"
        ends.nothing_left()

    def test_ctrl_c_at_random_moments(self, ends: Ends, experiment: Path) -> None:
        generator = random.Random(os.environ.get("PYTEST_SEED", "ends"))
        for attempt in range(INTERRUPTS):
            running = ends.start("run", experiment, "--out", experiment.parent / f"{attempt}")
            time.sleep(generator.uniform(0.0, DELAY_MAX_S * (1 + attempt % 4)))
            running.signal_group(signal.SIGINT)
            ended = running.end()
            # The very first moments belong to the shell that starts ./inv: it just dies.
            assert ended.status in (0, 130, -signal.SIGINT), ended
            if ended.status == 130:
                ended.error()
            ends.nothing_left()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_a_signal_while_the_native_code_is_built(
        self, ends: Ends, tmp_path: Path, number: signal.Signals
    ) -> None:
        environment = {"WORMHOLE_CACHE": str(tmp_path / "cache")}
        running = ends.start("exec", "--", "true", environment=environment)
        wait_until(lambda: bool(ends.processes("gcc")), "the compiler", RUN_LIMIT_S)
        if number is signal.SIGKILL:
            running.process.kill()
            running.end()
        else:
            running.signal_group(number)
            running.end().error()

    def test_an_impatient_user(self, ends: Ends, experiment: Path) -> None:
        running = ends.start("run", experiment, "--out", experiment.parent / "out")
        running.wait_for("[1/6]")
        while running.process.poll() is None:
            running.signal_group(signal.SIGINT)
            time.sleep(0.05)
        running.end().error()

    @pytest.mark.parametrize(
        ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
    )
    def test_a_signal_to_inv_alone(
        self, ends: Ends, experiment: Path, number: signal.Signals, status: int
    ) -> None:
        running = ends.start("run", experiment, "--out", experiment.parent / "out")
        running.wait_for("[1/6]")
        running.process.send_signal(number)
        ended = running.end()
        assert number.name in ended.error()
        assert ended.status == status

    def test_kill_9_loses_the_trial_in_flight_at_most(self, ends: Ends, experiment: Path) -> None:
        out = experiment.parent / "out"
        # The source may be edited while the tests run, and that would forbid to resume.
        no_commit = {"GIT_DIR": os.devnull}
        running = ends.start("run", experiment, "--out", out, environment=no_commit)
        running.wait_for("[2/6]")
        # Well into the next trial: its worker is up.
        wait_until(lambda: bool(ends.processes(WORKER)), "a worker", RUN_LIMIT_S)
        running.process.kill()
        assert running.end().status == -signal.SIGKILL
        ends.nothing_left()
        run = run_directory(out)
        finished = [trial["id"] for trial in trials(run)]
        assert len(finished) >= 2
        resumed = ends.run("run", "ends", "--resume", run, environment=no_commit)
        assert resumed.status == 0, resumed
        again = [trial["id"] for trial in trials(run)]
        assert again[: len(finished)] == finished
        assert len(again) == len(set(again)) == TRIALS

    def test_kill_9_of_the_process_that_does_the_work(self, ends: Ends, experiment: Path) -> None:
        running = ends.start("run", experiment, "--out", experiment.parent / "out")
        running.wait_for("[1/6]")
        # The janitor is a child of ./inv, and the work is the janitor's.
        (janitor,) = children(running.process.pid)
        (work,) = children(janitor)
        os.kill(work, signal.SIGKILL)
        assert "SIGKILL" in running.end().error()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_a_program_by_hand_ends_with_inv(
        self, ends: Ends, tmp_path: Path, number: signal.Signals
    ) -> None:
        program = f"touch {tmp_path}/runs; sleep 600"
        running = ends.start("exec", "--system", "wormhole", "--", "sh", "-c", program)
        wait_until((tmp_path / "runs").exists, "the program", RUN_LIMIT_S)
        if number is signal.SIGKILL:
            running.process.send_signal(number)
            running.end()
        else:
            running.signal_group(number)
            running.end().error()


class TestFaults:
    """Something of the run breaks; the run goes on or says what broke."""

    def test_a_killed_worker_fails_its_trial_alone(self, ends: Ends, experiment: Path) -> None:
        out = experiment.parent / "out"
        running = ends.start("run", experiment, "--out", out)
        running.wait_for("[1/6]")
        os.kill(a_worker(ends), signal.SIGKILL)
        self.one_failed(running.end(), out)

    def test_a_killed_supervisor_fails_its_trial_alone(self, ends: Ends, experiment: Path) -> None:
        out = experiment.parent / "out"
        running = ends.start("run", experiment, "--out", out)
        running.wait_for("[1/6]")
        # Its parent and no other process with that name: a janitor is a supervisor's child.
        os.kill(int(stat_fields(a_worker(ends))[1]), signal.SIGKILL)
        self.one_failed(running.end(), out)

    @staticmethod
    def one_failed(ended: Ended, out: Path) -> None:
        assert "1 of 6 trials were not ok" in ended.error()
        (failed,) = (trial for trial in trials(run_directory(out)) if trial["status"] != "ok")
        # A replay whose worker dies gets the API's error where a result was recorded.
        assert failed["status"] in ("failed", "mismatch"), ended
        assert failed["detail"]
        assert f"1 {failed['status']}, {TRIALS - 1} ok" in ended.out

    def test_two_runs_at_once_do_not_collide(self, ends: Ends, experiment: Path) -> None:
        out = experiment.parent / "out"
        both = [ends.start("run", experiment, "--out", out) for _ in range(2)]
        for running in both:
            ended = running.end()
            assert ended.status == 0, ended
        runs = list((out / "ends").iterdir())
        assert len(runs) == 2
        for run in runs:
            assert [trial["status"] for trial in trials(run)] == ["ok"] * TRIALS

    def test_a_run_in_use_is_refused(self, ends: Ends, experiment: Path) -> None:
        out = experiment.parent / "out"
        running = ends.start("run", experiment, "--out", out)
        running.wait_for("[1/6]")
        run = run_directory(out)
        assert f"{run} is in use" in ends.run("run", "ends", "--resume", run).error()
        running.signal_group(signal.SIGINT)
        running.end().error()

    def test_a_torn_recording(self, ends: Ends, tmp_path: Path) -> None:
        recording = tmp_path / "digits.whrec"
        made = ends.run("record", "--workload", "lenet-digits", "--out", recording)
        assert made.status == 0, made
        whole = recording.read_bytes()
        recording.write_bytes(whole[: len(whole) // 2])
        assert str(recording) in ends.run("replay", recording).error()
        # A byte in the middle of the data: either the replies differ or the file is refused.
        middle = len(whole) // 2
        recording.write_bytes(
            whole[:middle]
            + bytes(255 - byte for byte in whole[middle : middle + 64])
            + whole[middle + 64 :]
        )
        assert str(recording) in ends.run("replay", recording).error()


class TestSurroundings:
    """The machine lacks something."""

    def test_a_missing_compiler(self, ends: Ends, tmp_path: Path) -> None:
        path = tmp_path / "bin"
        path.mkdir()
        for folder in (Path("/usr/bin"), Path("/bin"), Path("/usr/sbin"), Path("/sbin")):
            for program in folder.iterdir():
                if not any(word in program.name for word in ("gcc", "cc", "c99", "c89", "clang")):
                    link = path / program.name
                    if not link.exists():
                        link.symlink_to(program)
        environment = {"PATH": str(path), "WORMHOLE_CACHE": str(tmp_path / "cache")}
        error = ends.run("exec", "--", "true", environment=environment).error()
        assert "gcc" in error

    def test_a_full_disk_for_results(self, ends: Ends, experiment: Path) -> None:
        # A limit on the size of files acts like a disk that fills up while a run writes to it.
        ended = ends.run(
            "run", experiment, "--out", experiment.parent / "out", before=file_size_limit(3000)
        )
        assert str(experiment.parent / "out") in ended.error()

    def test_a_full_disk_for_the_cache(self, ends: Ends, tmp_path: Path) -> None:
        environment = {"WORMHOLE_CACHE": str(tmp_path / "cache")}
        ended = ends.run(
            "exec", "--", "true", environment=environment, before=file_size_limit(5000)
        )
        assert str(tmp_path / "cache") in ended.error()
        assert not list((tmp_path / "cache").glob(".*.partial"))

    def test_results_that_cannot_be_written(self, ends: Ends, experiment: Path) -> None:
        # Root may write anywhere, but nobody can make a directory below a file.
        blocked = experiment.parent / "blocked"
        blocked.touch()
        error = ends.run("run", experiment, "--out", blocked).error()
        assert str(blocked) in error and "--out" in error


def test_without_rights_process_placement_works_and_guests_say_what_is_missing(
    ends: Ends,
) -> None:
    with tempfile.TemporaryDirectory(prefix="ends-home-", dir="/tmp") as home:
        environment = {"HOME": home, "TMPDIR": home, "WORMHOLE_CACHE": f"{home}/cache"}
        prefix: tuple[str, ...] = ()
        if os.getuid() == 0:
            shutil.chown(home, "nobody", "nogroup")
            prefix = ("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups")
            readable = subprocess.run([*prefix, "test", "-r", str(ROOT / "inv")], timeout=20)
            if readable.returncode != 0:
                pytest.skip(f"nobody may not read {ROOT}: clone into a folder others may enter")
        listed = ends.run(
            "exec",
            "--system",
            "wormhole",
            "--",
            "clinfo",
            "-l",
            environment=environment,
            prefix=prefix,
        )
        assert listed.status == 0, listed
        assert listed.out.count("Platform #") == 1
        guest = ends.run(
            "exec", "--placement", "guest", "--", "true", environment=environment, prefix=prefix
        )
        assert "needs root" in guest.error()
        assert "--placement process" in guest.error()


def a_worker(ends: Ends) -> int:
    """The process id of a worker of ours that runs."""
    found: list[int] = []

    def some() -> bool:
        found[:] = ends.processes(WORKER)
        return bool(found)

    wait_until(some, "a worker", RUN_LIMIT_S)
    return found[0]


def file_size_limit(size_bytes: int) -> Callable[[], None]:
    """A limit for the files of a new process; writes beyond it fail instead of killing it."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))

    return limit
