"""The file system of host files: every file as it is, nothing that is not to be seen.

The format is read here a second time, from the disk's bytes alone, so that writer and reader do not
share a mistake; that Linux reads it shows `test_host_python_vm.py`.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from testbed.errors import TestbedError
from testbed.machine import erofs
from testbed.machine.erofs import Tree, host_tree

BLOCK = 4096


@dataclass(frozen=True)
class Inode:
    mode: int
    size: int
    block: int
    mtime: int
    mtime_ns: int
    owners: tuple[int, int]


class Disk:
    """What is on a disk, as a kernel would find it."""

    def __init__(self, tree: Tree) -> None:
        self._reader = tree.reader()
        head = self._reader.read(1024, 128)
        magic, bits, root, inodes, blocks = struct.unpack_from("<I8xB1xHQ12xI", head)
        assert magic == 0xE0F5E1E2
        assert 1 << bits == BLOCK
        assert blocks * BLOCK == tree.size_bytes
        assert inodes == tree.files
        self._root = root

    def read(self, path: str) -> bytes:
        return self._data(self.inode(path))

    def inode(self, path: str) -> Inode:
        number = self._root
        for name in PurePosixPath(path).parts[1:]:
            number = self._entries(number)[os.fsencode(name)][0]
        return self._inode(number)

    def names(self, path: str) -> list[bytes]:
        """In the folder's own order, without itself and its parent."""
        number = self._root
        for name in PurePosixPath(path).parts[1:]:
            number = self._entries(number)[os.fsencode(name)][0]
        entries = self._entries(number)
        assert entries[b"."] == (number, 2)
        assert b".." in entries
        assert list(entries) == sorted(entries), "the kernel searches by halves"
        return [name for name in entries if name not in (b".", b"..")]

    def _inode(self, number: int) -> Inode:
        fields = struct.unpack("<HHHHQIIIIQII16x", self._reader.read(number * 32, 64))
        assert fields[0] == 1, "64 bytes, plain data"
        assert fields[1] == 0, "no extended attributes"
        return Inode(fields[2], fields[4], fields[5], fields[9], fields[10], (fields[7], fields[8]))

    def _data(self, inode: Inode) -> bytes:
        return bytes(self._reader.read(inode.block * BLOCK, inode.size))

    def _entries(self, number: int) -> dict[bytes, tuple[int, int]]:
        inode = self._inode(number)
        assert stat.S_ISDIR(inode.mode)
        found: dict[bytes, tuple[int, int]] = {}
        data = self._data(inode)
        for start in range(0, len(data), BLOCK):
            block = data[start : start + BLOCK]
            count = struct.unpack_from("<8xH", block)[0] // 12
            places = [struct.unpack_from("<QHBx", block, 12 * at) for at in range(count)]
            ends = [place[1] for place in places[1:]] + [len(block)]
            for (child, begin, kind), end in zip(places, ends, strict=True):
                found[block[begin:end].rstrip(b"\0")] = (child, kind)
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that everybody may enter, as installed programs are."""
    place = tmp_path / "shared"
    place.mkdir(mode=0o755)
    return place


def test_files_folders_and_links_are_as_they_are(folder: Path) -> None:
    contents = {
        "empty": b"",
        "short": b"x" * 17,
        "block": b"y" * BLOCK,
        "long": os.urandom(3 * BLOCK + 5),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "below").mkdir()
    (folder / "below" / "run").write_text("#!/bin/sh\n")
    (folder / "below" / "run").chmod(0o755)
    (folder / "link").symlink_to("below/run")
    os.utime(folder / "long", ns=(0, 1_700_000_000_123_456_789))
    disk = Disk(host_tree([folder]))
    for name, content in contents.items():
        assert disk.read(f"{folder}/{name}") == content, name
    assert disk.names(str(folder)) == [b"below", b"block", b"empty", b"link", b"long", b"short"]
    assert disk.inode(f"{folder}/below/run").mode == stat.S_IFREG | 0o755
    assert stat.S_ISLNK(disk.inode(f"{folder}/link").mode)
    assert disk.read(f"{folder}/link") == b"below/run"
    # Python takes compiled modules only where the source has the time that they note.
    seen = disk.inode(f"{folder}/long")
    assert (seen.mtime, seen.mtime_ns, seen.owners) == (1_700_000_000, 123_456_789, (0, 0))


def test_a_folder_of_many_names(folder: Path) -> None:
    names = [f"{'n' * (at % 200)}{at}" for at in range(700)]
    for name in names:
        (folder / name).write_text(name)
    disk = Disk(host_tree([folder]))
    assert disk.names(str(folder)) == sorted(map(str.encode, names))
    assert all(disk.read(f"{folder}/{name}") == name.encode() for name in names[::50])


def test_only_what_all_may_read_is_shown(folder: Path) -> None:
    for name, mode in (("secret", 0o640), ("program", 0o4755), ("plain", 0o666)):
        (folder / name).write_text(name)
        (folder / name).chmod(mode)
    (folder / "closed").mkdir(mode=0o750)
    (folder / "closed" / "inside").write_text("x")
    os.mkfifo(folder / "pipe")
    disk = Disk(host_tree([folder]))
    assert disk.names(str(folder)) == [b"plain", b"program"]
    assert disk.inode(f"{folder}/program").mode == stat.S_IFREG | 0o755, "no set-user-id"
    assert disk.inode(f"{folder}/plain").mode == stat.S_IFREG | 0o644


def test_nothing_beside_what_is_named_is_shown(folder: Path) -> None:
    for name in ("wanted", "other"):
        (folder / name).mkdir()
        (folder / name / "file").write_text(name)
    tree = host_tree([folder / "wanted", folder / "missing"], [PurePosixPath("/dev")])
    disk = Disk(tree)
    assert disk.names(str(folder)) == [b"wanted"]
    assert disk.names("/dev") == []
    top = {b"dev", os.fsencode(folder.parts[1])}
    assert set(disk.names("/")) == top


def test_links_on_the_way_are_shown_with_where_they_lead(folder: Path) -> None:
    """As those of a virtual environment: its python3 leads to another, and that to a third."""
    (folder / "real" / "bin").mkdir(parents=True)
    (folder / "real" / "bin" / "python3.12").write_text("program")
    (folder / "base").symlink_to("real")
    (folder / "venv").mkdir()
    (folder / "venv" / "python3").symlink_to(folder / "base" / "bin" / "python3")
    (folder / "real" / "bin" / "python3").symlink_to("python3.12")
    disk = Disk(host_tree([folder / "venv" / "python3"]))
    assert disk.read(f"{folder}/venv/python3").decode() == f"{folder}/base/bin/python3"
    assert disk.read(f"{folder}/base") == b"real"
    assert disk.read(f"{folder}/real/bin/python3") == b"python3.12"
    assert disk.read(f"{folder}/real/bin/python3.12") == b"program"


def test_a_loop_of_links_is_nothing(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    assert Disk(host_tree([folder / "a" / "x"])).names("/") == []


def test_the_whole_machine_is_never_meant(folder: Path) -> None:
    (folder / "up").symlink_to("/")
    assert Disk(host_tree([Path("/"), folder / "up"])).read(f"{folder}/up") == b"/"
    assert Disk(host_tree([Path("/")])).names("/") == []


def test_too_much_to_list_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erofs, "ENTRIES_MAX", 3)
    for at in range(5):
        (folder / str(at)).touch()
    with pytest.raises(TestbedError, match="more than 3 files"):
        host_tree([folder])


def test_reads_cross_files_and_gaps(folder: Path) -> None:
    for name in "abc":
        (folder / name).write_bytes(name.encode() * 5000)
    tree = host_tree([folder])
    reader = tree.reader()
    whole = reader.read(0, tree.size_bytes)
    for offset, size in ((0, 10), (4090, 9000), (tree.size_bytes - 7, 7), (5000, 0)):
        assert reader.read(offset, size) == whole[offset : offset + size]
    assert whole.count(b"b") >= 5000
    reader.close()


def test_a_file_that_became_shorter_is_an_error(folder: Path) -> None:
    (folder / "file").write_bytes(b"x" * 10_000)
    tree = host_tree([folder])
    (folder / "file").write_bytes(b"x")
    with pytest.raises(OSError, match="shorter"):
        tree.reader().read(0, tree.size_bytes)


@pytest.mark.parametrize("change", ["link", "closed", "pipe"])
def test_what_takes_a_files_place_is_not_shown(folder: Path, change: str) -> None:
    (folder / "file").write_bytes(b"x" * 100)
    tree = host_tree([folder])
    (folder / "file").unlink()
    if change == "link":
        (folder / "file").symlink_to("/etc/passwd")
    elif change == "pipe":
        os.mkfifo(folder / "file")
    else:
        (folder / "file").write_bytes(b"secret" * 20)
        (folder / "file").chmod(0o600)
    with pytest.raises(OSError):
        tree.reader().read(0, tree.size_bytes)


def test_a_link_in_a_folders_place_leads_nowhere(folder: Path, tmp_path: Path) -> None:
    (folder / "below").mkdir()
    (folder / "below" / "file").write_bytes(b"x" * 100)
    tree = host_tree([folder])
    (folder / "below").rename(tmp_path / "aside")
    (folder / "below").symlink_to(tmp_path / "aside")
    with pytest.raises(OSError):
        tree.reader().read(0, tree.size_bytes)


def test_few_files_are_open_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erofs, "OPEN_FILES_MAX", 2)
    for at in range(6):
        (folder / str(at)).write_text(str(at))
    tree = host_tree([folder])
    reader = tree.reader()
    before = len(list(Path("/proc/self/fd").iterdir()))
    reader.read(0, tree.size_bytes)
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 2
    reader.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
