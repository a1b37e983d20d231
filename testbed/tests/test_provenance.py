"""The manifest and the rule for noisy trials."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from testbed.experiment import noise, provenance
from testbed.tests.experiments import example


def test_manifest_is_plain_json_and_complete() -> None:
    source = provenance.Commit("a" * 40, "")
    manifest = json.loads(json.dumps(provenance.new_manifest(example(), source)))
    assert manifest["commit"]["short"] == "aaaaaaa"
    assert len(manifest["spec_hash"]) == 16
    assert manifest["experiment"]["seed"] == 7
    assert manifest["experiment"]["systems"][2]["overrides"] == {"spin_us": 0}
    assert manifest["host"]["cores"] >= 1
    assert manifest["host"]["cpu_model"]
    assert "foreign processes" in manifest["noise_rule"]["text"]


def test_unlike_machines_and_sources_are_not_mixed_in_one_run() -> None:
    old = provenance.new_manifest(example(), provenance.Commit("a" * 40, ""))
    new = provenance.new_manifest(example(), provenance.Commit("a" * 40, ""))
    assert provenance.resume_conflicts(old, new) == []
    old["host"]["cpu_model"] = "another"
    old["commit"]["id"] = "b" * 40
    conflicts = provenance.resume_conflicts(old, new)
    assert [conflict.split(":")[0] for conflict in conflicts] == ["commit.id", "host.cpu_model"]


def test_commit_sees_changes_and_works_without_git(tmp_path: Path) -> None:
    assert provenance.commit(tmp_path).id == "nogit"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True, timeout=30)
    clean = provenance.commit(tmp_path)
    assert not clean.to_json()["dirty"]
    (tmp_path / "file").write_text("2")
    first = provenance.commit(tmp_path)
    (tmp_path / "file").write_text("3")
    second = provenance.commit(tmp_path)
    assert first.to_json()["dirty"]
    assert first.changes_sha256 != second.changes_sha256


def test_gpus_are_told_and_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "NVIDIA H200, 580.1, GPU-1\nNVIDIA H200, 580.1, GPU-2"
    monkeypatch.setattr(provenance, "_output", lambda *_: said)
    gpu = provenance.gpu()
    assert gpu == {
        "devices": ["NVIDIA H200"] * 2,
        "driver": "580.1",
        "uuids": ["GPU-1", "GPU-2"],
    }
    # Another card of the kind is the same machine, another driver is not.
    assert provenance.resume_conflicts({"gpu": gpu}, {"gpu": {**gpu, "uuids": []}}) == []
    conflicts = provenance.resume_conflicts({"gpu": gpu}, {"gpu": {**gpu, "driver": "1"}})
    assert conflicts == ["gpu.driver: 580.1, now 1"]
    monkeypatch.setattr(provenance, "_output", lambda *_: "")
    assert provenance.gpu() is None


def test_clinfo_is_read() -> None:
    text = (
        "  CL_PLATFORM_NAME                Portable Computing Language\n"
        "[POCL/*]    CL_PLATFORM_NAME      Portable Computing Language\n"
        "[POCL/0]    CL_DEVICE_NAME        pthread-a processor\n"
        "[POCL/0]    CL_DRIVER_VERSION     3.1+debian\n"
    )
    facts = provenance.parse_clinfo(text)
    assert facts["platform"] == "Portable Computing Language"
    assert facts["device"] == "pthread-a processor"
    assert facts["driver"] == "3.1+debian"
    assert facts["device_version"] is None


STAT = """\
cpu  999 0 0 0 0 0 0 0 0 0
cpu0 100 10 20 700 30 5 5 40 0 0
cpu1 200 0 0 800 0 0 0 0 0 0
cpu2 900 0 0 0 0 0 0 0 0 0
intr 1
"""


def test_only_our_cores_are_counted() -> None:
    times = noise.parse_cpu_times(STAT, frozenset({0, 1}), 100)
    assert (times.busy_s, times.idle_s, times.steal_s) == pytest.approx((3.4, 15.3, 0.4))


@pytest.mark.parametrize(
    ("busy_before_cores", "steal_s", "own_cpu_s", "expected"),
    [
        (0.1, 0.0, 9.0, []),
        (0.4, 0.0, 9.0, ["0.40 cores busy before"]),
        (0.1, 1.0, 9.0, ["5.0% stolen"]),
        (0.1, 0.0, 6.0, ["20% used by others"]),
        (0.1, 0.0, None, []),
    ],
)
def test_noisy_trials_are_marked_by_the_written_rule(
    busy_before_cores: float, steal_s: float, own_cpu_s: float | None, expected: list[str]
) -> None:
    found = noise.judge(
        busy_before_cores=busy_before_cores,
        load_before=1.0,
        load_after=1.0,
        before=noise.CpuTimes(0.0, 0.0, 0.0),
        after=noise.CpuTimes(10.0, 10.0 - steal_s, steal_s),
        own_cpu_s=own_cpu_s,
        with_guest=False,
    )
    assert list(found.reasons) == expected
    assert found.to_json()["noisy"] is bool(expected)


def test_a_throttled_core_makes_a_trial_noisy(tmp_path: Path) -> None:
    assert noise.throttle_count(tmp_path) is None
    for core, count in (("cpu0", 3), ("cpu11", 4)):
        folder = tmp_path / core / "thermal_throttle"
        folder.mkdir(parents=True)
        (folder / "core_throttle_count").write_text(f"{count}\n")
    (tmp_path / "cpufreq").mkdir()
    assert noise.throttle_count(tmp_path) == 7
    quiet = {
        "busy_before_cores": 0.0,
        "load_before": 1.0,
        "load_after": 1.0,
        "before": noise.CpuTimes(0.0, 0.0, 0.0),
        "after": noise.CpuTimes(10.0, 10.0, 0.0),
        "own_cpu_s": 10.0,
        "with_guest": False,
    }
    hot = noise.judge(**quiet, throttled=2)  # type: ignore[arg-type]
    assert hot.reasons == ("cores throttled 2 times",)
    assert hot.to_json()["throttled"] == 2
    assert not noise.judge(**quiet, throttled=0).noisy  # type: ignore[arg-type]
    assert "throttled" in str(noise.RULE["text"])
