"""What is made in the server guest, and what has to be made again when something changes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from testbed.errors import TestbedError
from testbed.experiment import serving
from testbed.experiment.prepare import Bundle
from testbed.machine.server_guest import ServerGuest

KERNELS = b"a tar file"
CALLS = b"recorded calls"


class Guest:
    """A server guest that runs nothing: it prints a loss, and notes in which environment."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.forwarded_loss = "3f800000"
        self.vm = SimpleNamespace(
            guest=SimpleNamespace(info=lambda: {"cpu_model": "emulated"}),
            facts=SimpleNamespace(accelerator="tcg"),
            ssh=SimpleNamespace(
                put=lambda files: None,
                get=lambda path, timeout_s: CALLS,
                run=lambda *words, **more: SimpleNamespace(stdout=KERNELS),
            ),
        )
        self.packages_sha256, self.own_url, self.token = "image", "tcp:10.0.2.2:1", "00"

    def run(self, server: object, bundle: Bundle, environment: dict[str, str]) -> list[str]:
        recorded = "WORMHOLE_RECORD" in environment
        self.ran.append("recorded" if recorded else "native")
        loss = self.forwarded_loss if recorded else "3f800000"
        return [json.dumps({"event": "step", "step": 0, "t_ns": 1, "loss_bits": loss})]


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guest:
    monkeypatch.setenv("WORMHOLE_CACHE", str(tmp_path / "cache"))
    made = Guest()
    monkeypatch.setattr(serving, "_run", made.run)
    monkeypatch.setattr(serving, "read_recording", lambda path: None)
    return made


def record(guest: Guest, library: Path) -> bytes:
    server = cast(ServerGuest, guest)
    bundle = cast(Bundle, SimpleNamespace(key="k", workload=SimpleNamespace(name="small")))
    native = serving._native_in(server, bundle)
    assert (native / serving.KERNELS_NAME).read_bytes() == KERNELS
    losses: Any = serving._losses(native)
    return serving._recorded_in(server, bundle, library, losses).read_bytes()


def test_another_stub_repeats_the_recording_and_not_the_native_run(
    guest: Guest, tmp_path: Path
) -> None:
    library = tmp_path / "stub.so"
    library.write_bytes(b"one")
    assert record(guest, library) == CALLS
    assert guest.ran == ["native", "recorded"]
    record(guest, library)
    assert guest.ran == ["native", "recorded"]
    library.write_bytes(b"another")
    record(guest, library)
    assert guest.ran == ["native", "recorded", "recorded"]


def test_a_recording_with_other_losses_is_not_kept(guest: Guest, tmp_path: Path) -> None:
    library = tmp_path / "stub.so"
    library.write_bytes(b"one")
    guest.forwarded_loss = "3f800001"
    with pytest.raises(TestbedError, match="does not give the same losses"):
        record(guest, library)
    guest.forwarded_loss = "3f800000"
    assert record(guest, library) == CALLS
