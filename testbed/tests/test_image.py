"""The image's pure parts: archives, module order, the machine's package sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.machine import image

DEB822 = """\
Types: deb
# a comment in between
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
 bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
URIs: https://vendor.example/node
Suites: nodistro
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""

ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main non-free
deb http://mirror.example/debian bookworm-updates main # why
deb-src http://mirror.example/debian bookworm main
deb https://vendor.example/apt cloud-sdk-bookworm main
deb http://mirror.example/debian bookworm contrib
"""


def test_deb822_sources(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822)
    key = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
    assert image.machine_sources(tmp_path, "bookworm").splitlines() == [
        f"deb {key}http://mirror.example/debian bookworm main",
        f"deb {key}http://mirror.example/debian bookworm-updates main",
        "deb http://mirror.example/debian-security bookworm-security main",
    ]


def test_one_line_sources(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("")
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "all.list").write_text(ONE_LINE)
    assert image.machine_sources(tmp_path, "bookworm").splitlines() == [
        "deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main",
        "deb http://mirror.example/debian bookworm-updates main",
    ]


def test_a_machine_without_an_archive_has_no_sources(tmp_path: Path) -> None:
    assert image.machine_sources(tmp_path, "bookworm") == ""


def module(needs: str) -> bytes:
    """As much of a module as the order depends on."""
    return b"\x7fELF....license=GPL\0depends=" + needs.encode() + b"\0intree=Y\0"


def test_modules_come_after_what_they_need() -> None:
    modules = {
        "net": module("failover,bus"),
        "failover": module(""),
        "bus": module("ring"),
        "ring": module(""),
        "unused": module("ring"),
    }
    assert image.module_order(["bus", "net"], modules) == ["ring", "bus", "failover", "net"]


def test_names_with_dashes_are_the_same_modules() -> None:
    assert image.module_order(["a"], {"a": module("b-c"), "b_c": module("")}) == ["b_c", "a"]


def test_a_wanted_module_that_is_built_in_is_left_out() -> None:
    assert image.module_order(["builtin", "a"], {"a": module("")}) == ["a"]


def test_archive_layout() -> None:
    archive = image.cpio_archive([("ab", 0o100644, b"xyz")])
    assert archive[:6] == b"070701"
    fields = [int(archive[6 + 8 * i : 14 + 8 * i], 16) for i in range(13)]
    assert (fields[1], fields[6], fields[11]) == (0o100644, 3, 3)
    assert archive[110:113] == b"ab\0"
    assert archive[116:119] == b"xyz", "content starts at the next multiple of four"
    assert archive[120:126] == b"070701", "and so does the next header"
    assert b"TRAILER!!!" in archive


def test_private_seed_files_are_for_root_alone() -> None:
    archive = image.seed_archive({"key": b"k", "open": b"o"}, private=["key"])
    modes = {}
    for name in (b"seed/key", b"seed/open"):
        header = archive.index(name + b"\0") - 110
        modes[name] = int(archive[header + 14 : header + 22], 16) & 0o777
    assert modes == {b"seed/key": 0o600, b"seed/open": 0o644}


def test_a_driver_without_build_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"no guest driver to build in .*no Kbuild"):
        image.build_driver(tmp_path, tmp_path)
