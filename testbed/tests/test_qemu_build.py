"""Decisions of the QEMU build: which archive, which version, what makes a build a different one."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.machine import qemu_build
from testbed.machine.qemu_build import AptSource, debian_archives, newest_matching

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@pytest.fixture
def etc_apt(tmp_path: Path) -> Path:
    """An empty /etc/apt."""
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def test_newest_version_of_the_series() -> None:
    versions = [
        "1:7.2+dfsg-7+deb12u13",
        "1:10.0.2+ds-2+deb13u1",
        "1:10.0.13+ds-0+deb13u1",
        "1:10.0.7+ds-0+deb13u1",
        "1:10.1.0+ds-1",
        "1:110.0.14+ds-1",
    ]
    assert newest_matching(versions, "10.0") == "1:10.0.13+ds-0+deb13u1"
    assert newest_matching(versions[:1], "10.0") is None
    assert newest_matching([], "10.0") is None


def test_archives_of_deb822_sources(etc_apt: Path) -> None:
    (etc_apt / "sources.list.d" / "debian.sources").write_text(
        "Types: deb\n"
        "# http://snapshot.example/comment\n"
        "URIs: http://one.example/debian http://two.example/debian\n"
        "Suites: bookworm bookworm-updates\n"
        "Components: main contrib\n"
        f"Signed-By: {KEYRING}\n"
        "\n"
        "Types: deb\n"
        "URIs: http://one.example/debian-security\n"
        "Suites: bookworm-security\n"
        "Components: main\n"
        "\n"
        "Types: deb\nEnabled: no\nURIs: http://off.example\nSuites: bookworm\nComponents: main\n"
    )
    assert debian_archives(etc_apt, "bookworm") == [
        AptSource("http://one.example/debian", KEYRING),
        AptSource("http://two.example/debian", KEYRING),
    ]


def test_a_key_block_in_a_deb822_source_is_kept(etc_apt: Path) -> None:
    block = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END PGP PUBLIC KEY BLOCK-----"
    (etc_apt / "sources.list.d" / "debian.sources").write_text(
        f"Types: deb\nURIs: http://a.example\nSuites: trixie\nComponents: main\nSigned-By:{block}\n"
    )
    assert debian_archives(etc_apt, "trixie") == [AptSource("http://a.example", block)]


def test_archives_of_one_line_sources(etc_apt: Path) -> None:
    (etc_apt / "sources.list").write_text(
        "# deb http://comment.example bookworm main\n"
        "deb http://plain.example/debian bookworm main # the mirror\n"
        "deb [arch=amd64 signed-by=/key.gpg] http://keyed.example/debian bookworm contrib main\n"
        "deb http://other.example/debian bookworm-updates main\n"
        "deb http://vendor.example/packages bookworm stable\n"
    )
    (etc_apt / "sources.list.d" / "more.list").write_text(
        "deb-src http://plain.example/debian bookworm main\n"
    )
    assert debian_archives(etc_apt, "bookworm") == [
        AptSource("http://plain.example/debian", KEYRING),
        AptSource("http://keyed.example/debian", "/key.gpg"),
    ]


def test_no_sources_no_archives(tmp_path: Path) -> None:
    assert debian_archives(tmp_path, "bookworm") == []


def test_a_patchs_words_do_not_make_another_build() -> None:
    diff = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n"
    one = qemu_build.patch_changes(f"From 0\nDate: Mon\nSubject: x\n\nwhy\n---\n{diff}")
    other = qemu_build.patch_changes(f"From 0\nDate: Tue\nSubject: y\n\nbecause\n---\n{diff}")
    assert one == other == diff
    assert qemu_build.patch_changes(diff.replace("+2", "+3")) != diff
    documentation = diff.replace("/x", "/docs/x")
    assert qemu_build.patch_changes(documentation + diff + documentation) == diff
    with pytest.raises(TestbedError, match="no diff"):
        qemu_build.patch_changes("Subject: nothing\n")


def test_progress_is_read_from_ninjas_lines() -> None:
    lines = ["[1/9] Generating x", "[7/9] Compiling a.c", "a.c:1: warning: [8/9] is no step"]
    assert qemu_build.ninja_steps(lines) == (7, 9)
    assert qemu_build.ninja_steps(["[0/1] starting", "configure: done"]) is None
    assert qemu_build.ninja_steps([]) is None


def test_nothing_is_built_in_an_empty_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORMHOLE_CACHE", str(tmp_path))
    monkeypatch.delenv("WORMHOLE_QEMU_TARBALL", raising=False)
    assert not qemu_build.qemu_is_built()
    assert not list(tmp_path.iterdir()), "asking must not start anything"


def test_the_tarball_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORMHOLE_QEMU_TARBALL", str(tmp_path / "qemu-10.0.3.tar.xz"))
    monkeypatch.setenv("WORMHOLE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(TestbedError, match="WORMHOLE_QEMU_TARBALL"):
        qemu_build.qemu_bundle()


def test_the_series_is_complete_and_explains_itself() -> None:
    patches = sorted(qemu_build.PATCHES.glob("[0-9]*.patch"))
    numbers = [patch.name[:4] for patch in patches]
    assert numbers == [f"{number:04}" for number in range(1, len(patches) + 1)]
    for patch in patches:
        head, _, _ = patch.read_text(encoding="utf-8").partition("\n---\n")
        assert len(head.partition("\n\n")[2].split()) >= 40, f"{patch.name} does not say why"


def test_the_device_is_among_the_devices() -> None:
    devices = (qemu_build.PATCHES / "devices.mak").read_text(encoding="utf-8").splitlines()
    assert "CONFIG_VIRTIO_WORMHOLE=y" in devices
