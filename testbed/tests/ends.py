"""Runs ./inv as a user does and looks at what it leaves: processes, sockets, files, mounts.

The test process makes itself the one to whom the kernel gives orphans.  Whatever ./inv started is
thus among our descendants, however it detached itself, while neighbours on the machine are not.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testbed.root import ROOT

PR_SET_CHILD_SUBREAPER = 36
RUN_LIMIT_S = 240.0
LEFT_LIMIT_S = 30.0
POLL_S = 0.02
#: In the command line of a worker, but not in that of its supervisor, which names the program too.
WORKER = "wormhole-worker --transport"


@dataclass(frozen=True)
class Ended:
    """How a run of ./inv ended."""

    status: int
    out: str
    err: str

    def error(self) -> str:
        """The one clear line; fails if there is none, more than one, or a traceback."""
        text = f"{self.out}\n{self.err}"
        assert self.status != 0, text
        for unwanted in ("Traceback", "Exception ignored", "Task was destroyed"):
            assert unwanted not in text, text
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, text
        assert re.fullmatch(r"error: .+ - .+", lines[0]) or "\n    " in self.err, text
        return self.err[self.err.index("error: ") :].strip()


@dataclass
class Running:
    """./inv at work, in a process group of its own like a shell's foreground job."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def said(self) -> str:
        """What it has printed on standard error so far."""
        return self.err.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str, limit_s: float = RUN_LIMIT_S) -> None:
        """Wait until it has said `text`; fails if it ends first."""
        wait_until(
            lambda: text in self.said() or self.process.poll() is not None, f"{text!r}", limit_s
        )
        assert text in self.said(), self.said()

    def signal_group(self, number: int) -> None:
        """What the terminal does on Ctrl-C."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self, limit_s: float = RUN_LIMIT_S) -> Ended:
        """Wait for its end."""
        try:
            status = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.signal_group(signal.SIGKILL)
            raise AssertionError(f"./inv did not end:\n{self.said()}") from None
        return Ended(status, self.out.read_text(encoding="utf-8", errors="replace"), self.said())


@dataclass
class Ends:
    """Starts ./inv with temporary files of its own and checks that nothing of it is left."""

    folder: Path
    temporary: Path
    _spared: frozenset[int] = field(default_factory=lambda: frozenset(descendants()))
    _started: list[Running] = field(default_factory=list)

    def start(
        self,
        *arguments: str | Path,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        before: Callable[[], None] | None = None,
    ) -> Running:
        """Start ./inv; `prefix` stands before it, `before` runs in the new process."""
        number = len(self._started)
        out, err = self.folder / f"out-{number}", self.folder / f"err-{number}"
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen(
                [*prefix, str(ROOT / "inv"), *(str(word) for word in arguments)],
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                cwd=ROOT,
                env={**os.environ, "TMPDIR": str(self.temporary), **(environment or {})},
                start_new_session=True,
                preexec_fn=before,
            )
        running = Running(process, out, err)
        self._started.append(running)
        return running

    def run(
        self,
        *arguments: str | Path,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        before: Callable[[], None] | None = None,
    ) -> Ended:
        """Run ./inv to its end."""
        return self.start(*arguments, environment=environment, prefix=prefix, before=before).end()

    def processes(self, words: str) -> list[int]:
        """Our descendants with these words in their command line, apart from ./inv itself."""
        own = {running.process.pid for running in self._started}
        return [pid for pid in self.descendants() if pid not in own and words in command_line(pid)]

    def descendants(self) -> list[int]:
        """The processes that ./inv started and that still run."""
        own = {running.process.pid for running in self._started}
        reap_orphans(own | self._spared)
        return [pid for pid in descendants() if pid not in self._spared]

    def nothing_left(self) -> None:
        """Fails if a process, socket, temporary file, half-built artifact or mount is left."""
        for running in self._started:
            assert running.process.poll() is not None, "a test waits for what it starts"
        # A supervisor that outlives a killed owner needs a moment to notice and to clear up.
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.remains(), "the end of what was started", LEFT_LIMIT_S)
        remains = self.remains()
        assert not remains, "left behind:\n" + "\n".join(remains)

    def remains(self) -> list[str]:
        """Everything that is left, in words."""
        left = [f"process {pid}: {command_line(pid)}" for pid in self.descendants()]
        left += [f"file {path}" for path in found(self.temporary, "*")]
        # A cache of the test's own; the common one has other builders too.
        left += [f"half-built {path}" for path in found(self.folder, ".*.partial")]
        # Sockets of the testbed lie in its temporary directory or have abstract names of ours.
        for line in Path("/proc/net/unix").read_text().splitlines():
            if str(self.temporary) in line:
                left.append(f"socket {line.split()[-1]}")
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if str(self.temporary) in line:
                left.append(f"mount {line}")
        return left

    def close(self) -> None:
        """End what a failed test left, so that it harms no other."""
        for running in self._started:
            if running.process.poll() is None:
                running.signal_group(signal.SIGKILL)
                running.process.wait(RUN_LIMIT_S)
        deadline_s = time.monotonic() + LEFT_LIMIT_S
        while (left := self.descendants()) and time.monotonic() < deadline_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)


def found(folder: Path, pattern: str) -> list[Path]:
    """What matches in a folder that others may be clearing at this moment."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return list(folder.rglob(pattern))


@contextlib.contextmanager
def watching(folder: Path) -> Iterator[Ends]:
    """An `Ends` for one test; checks at the end that nothing is left."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Short, since the paths of sockets are; open, since sessions run as users of their own.
    temporary = Path(tempfile.mkdtemp(prefix="ends-", dir="/tmp"))
    temporary.chmod(0o755)
    ends = Ends(folder, temporary)
    try:
        yield ends
        ends.nothing_left()
    finally:
        ends.close()
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        shutil.rmtree(temporary, ignore_errors=True)


def wait_until(condition: Callable[[], bool], what: str, limit_s: float) -> None:
    """Wait for a condition; fails at the limit."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {limit_s:.0f} s for {what}"
        time.sleep(POLL_S)


def descendants() -> set[int]:
    """All processes below this one, those without a living parent of their own included."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = stat_fields(int(entry.name))
            if fields and fields[0] not in "ZX":
                parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    level = {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found |= level
    return found


def reap_orphans(not_these: set[int] | frozenset[int]) -> None:
    """Collect ended processes that became our children."""
    for task in Path("/proc/self/task").iterdir():
        for word in (task / "children").read_text().split():
            fields = stat_fields(int(word))
            if int(word) not in not_these and fields and fields[0] == "Z":
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(int(word), os.WNOHANG)


def children(pid: int) -> list[int]:
    """The children of a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def command_line(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return " ".join(word.decode(errors="replace") for word in words)
