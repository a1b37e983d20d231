"""The copy bench: its arithmetic on made-up runs, and a small real run in `process` placement."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.errors import TestbedError
from testbed.experiment import bench_copy as bench


def made_up(seconds: float) -> dict[str, Any]:
    return {"4096": {f"{kind}_s": seconds for kind in bench.KINDS}}


def test_ratios_are_paired_by_round() -> None:
    native = [made_up(1e-6), made_up(4e-6), made_up(2e-6)]
    forwarded = [made_up(2e-6), made_up(8e-6), made_up(4e-6)]
    sizes = bench.summarise({"native": native, "wormhole": forwarded}, [4096])
    figure = sizes["4096"]["wormhole"]["read"]
    assert figure["of_native"]["estimate"] == pytest.approx(0.5)
    assert figure["of_native"]["low"] == pytest.approx(0.5)
    assert figure["of_memcpy"]["estimate"] == pytest.approx(1)
    assert figure["seconds"] == [2e-6, 8e-6, 4e-6]
    assert sizes["4096"]["native"]["read"]["of_native"] is None
    shown = bench.table({"placement": "process", "rounds": 3, "sizes": sizes})
    assert "4 KiB" in shown
    assert "read 1.02 (0.50 [0.50, 0.50])" in shown


@pytest.mark.parametrize("text", ["", "0", "K", "1G", "-1", "4K,,1M", "2000M"])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(TestbedError, match="is no size"):
        bench.parse_sizes(text)


def test_sizes_have_units() -> None:
    assert bench.parse_sizes("100,4K, 1m") == [100, 4096, 1 << 20]


@pytest.mark.native
@pytest.mark.opencl
def test_real_run_has_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SYSTEMS", ("wormhole", "tcp-sync"))
    monkeypatch.setattr(bench, "HOST_REPEATS", 2)
    figures = bench.bench_copy("process", "1,4097,300K", rounds=1)
    assert list(figures["sizes"]) == ["1", "4097", "307200"]
    for systems in figures["sizes"].values():
        assert list(systems) == ["native", "wormhole", "tcp-sync"]
        for kinds in systems.values():
            assert all(kinds[kind]["gigabytes_per_s"] > 0 for kind in bench.KINDS)
