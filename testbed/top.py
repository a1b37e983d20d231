"""`./inv top`: the live sessions of this user's host servers, and what each does in a second.

The supervisors are asked over their control sockets; each worker shows its counters in a page of
its own twice a second, so looking costs a session nothing.  Memory and processor time come from
/proc.  Sessions and supervisors may end between any two looks.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host_server.control import ANSWER_BYTES_MAX, CONTROL_NAME
from host_server.state_dir import NAME_PREFIX
from testbed.errors import TestbedError
from testbed.guard import Interrupted

ASK_LIMIT_S = 2.0
INTERVAL_MIN_S = 0.6  # a worker shows its counters every half second
RATES = ("messages", "replies", "bytes_received", "bytes_sent", "sleeps", "wakes_sent")
KIB = 1024
CLEAR_SCREEN = "\x1b[H\x1b[J"

COLUMNS = (
    "session",
    "where",
    "client",
    "pid",
    "uid",
    "age s",
    "calls/s",
    "replies/s",
    "out/s",
    "in/s",
    "sleeps/s",
    "wakes/s",
    "cpu %",
    "memory",
    "shared",
    "spin us",
    "notify",
)
NOTES = """\
calls/s: messages that reach the worker, so none that the stub answers; out, in: bytes from and to
the client, without what lies in mapped buffers; memory: the worker's own; shared: what it has
touched of ring and arena; pid, uid: the client's, in a guest as the guest counts"""


@dataclass(frozen=True)
class Look:
    """One session at one moment: what the supervisor says of it, and its process."""

    server: int
    said: Mapping[str, Any]
    cpu_s: float
    private_bytes: int
    shared_bytes: int

    @property
    def session(self) -> str:
        """The session's name."""
        return str(self.said["session"])

    @property
    def at_s(self) -> float:
        """When its worker wrote the counters."""
        return float(self.said["counters"]["at_ns"]) / 1e9


def run_top(once: bool, as_json: bool, interval_s: float) -> None:
    """Show the sessions every `interval_s`, or once, until a signal comes.

    On a terminal each look replaces the one before; as JSON each is a line.
    """
    if not INTERVAL_MIN_S <= interval_s <= 3600.0:
        raise TestbedError(
            f"an interval of {interval_s:g} s is not possible",
            f"give {INTERVAL_MIN_S} to 3600: workers show their counters twice a second",
        )
    parent = Path(tempfile.gettempdir())
    in_place = sys.stdout.isatty() and not (once or as_json)
    with suppress(Interrupted):
        for rows in _watch(parent, interval_s):
            text = json.dumps({"sessions": rows}) if as_json else table(rows)
            print((CLEAR_SCREEN if in_place else "") + text, flush=True)
            if once:
                return


def _watch(parent: Path, interval_s: float) -> Iterator[list[dict[str, Any]]]:
    """What each pair of looks shows; the first comes after one interval, for there are rates."""
    before = look(parent)
    while True:
        time.sleep(interval_s)
        after = look(parent)
        yield rows_of(before, after)
        before = after


def look(parent: Path) -> list[Look]:
    """All live sessions of this user's supervisors now; those that just end are left out."""
    found: list[Look] = []
    for control in sorted(parent.glob(f"{NAME_PREFIX}*/{CONTROL_NAME}")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            if control.parent.is_symlink() or control.parent.stat().st_uid != os.getuid():
                continue
            answer = _ask(control)
            for said in answer["sessions"]:
                with suppress(OSError, ValueError, KeyError, IndexError):
                    found.append(_with_process(int(answer["pid"]), said))
    return found


def _ask(control: Path) -> Any:
    data = b""
    deadline_s = time.monotonic() + ASK_LIMIT_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ASK_LIMIT_S)
        connection.connect(str(control))
        while piece := connection.recv(65536):
            data += piece
            if len(data) > ANSWER_BYTES_MAX or time.monotonic() > deadline_s:
                raise ValueError("no answer of a supervisor")
    return json.loads(data)


def _with_process(server: int, said: Mapping[str, Any]) -> Look:
    process = Path(f"/proc/{int(said['worker_pid'])}")
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    memory = {
        name: int(value.split()[0]) * KIB
        for name, _, value in (
            line.partition(":") for line in (process / "status").read_text().splitlines()
        )
        if name.startswith("Rss")
    }
    ticks = int(fields[11]) + int(fields[12])
    return Look(
        server=server,
        said=said,
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        private_bytes=memory.get("RssAnon", 0) + memory.get("RssFile", 0),
        shared_bytes=memory.get("RssShmem", 0),
    )


def rows_of(before: Sequence[Look], after: Sequence[Look]) -> list[dict[str, Any]]:
    """The sessions of the later look; a rate is None where there is nothing to compare with."""
    earlier = {(one.server, one.session): one for one in before}
    return [_row(earlier.get((now.server, now.session)), now) for now in after]


def _row(before: Look | None, now: Look) -> dict[str, Any]:
    rates: dict[str, float | None] = dict.fromkeys(RATES)
    share: float | None = None
    if before is not None:
        passed_s = now.at_s - before.at_s
        if passed_s > 0 and before.at_s > 0:
            then, counted = before.said["counters"], now.said["counters"]
            rates = {name: (counted[name] - then[name]) / passed_s for name in RATES}
        looked_s = float(now.said["age_s"]) - float(before.said["age_s"])
        share = (now.cpu_s - before.cpu_s) / looked_s if looked_s > 0 else None
    said = now.said
    return {
        "session": now.session,
        "supervisor_pid": now.server,
        "worker_pid": said["worker_pid"],
        "placement": said["placement"],
        "transport": said["transport"],
        "client": dict(said["client"]),
        "age_s": said["age_s"],
        "spin_us": said["spin_us"],
        "notify_always": said["notify_always"],
        **{f"{name}_per_s": rate for name, rate in rates.items()},
        **{name: said["counters"][name] for name in RATES},
        "cpu_share": share,
        "private_bytes": now.private_bytes,
        "shared_bytes": now.shared_bytes,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The sessions as lines for a terminal."""
    if not rows:
        return "no live session of this user: ./inv exec, vm.boot and serve open them"
    cells = [COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    lines = [
        "  ".join(text.ljust(width) if i < 3 else text.rjust(width) for i, (text, width) in pairs)
        for pairs in (list(enumerate(zip(line, widths, strict=True))) for line in cells)
    ]
    return "\n".join([*lines, NOTES])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    client = row["client"]
    share = row["cpu_share"]
    return (
        str(row["session"])[:8],
        f"{row['placement']}/{row['transport']}",
        _printable(client.get("name", "")),
        str(client.get("pid", "-")),
        str(client.get("uid", "-")),
        f"{row['age_s']:.0f}",
        _count(row["messages_per_s"]),
        _count(row["replies_per_s"]),
        _size(row["bytes_received_per_s"]),
        _size(row["bytes_sent_per_s"]),
        _count(row["sleeps_per_s"]),
        _count(row["wakes_sent_per_s"]),
        "-" if share is None else f"{100 * share:.0f}",
        _size(row["private_bytes"]),
        _size(row["shared_bytes"]),
        str(row["spin_us"]),
        "always" if row["notify_always"] else "adaptive",
    )


def _printable(text: object) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(text))


def _count(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0f}"


def _size(amount: float | None) -> str:
    if amount is None:
        return "-"
    for unit in ("", "K", "M"):
        if abs(amount) < KIB:
            return f"{amount:.0f}{unit}" if not unit else f"{amount:.1f}{unit}"
        amount /= KIB
    return f"{amount:.1f}G"
