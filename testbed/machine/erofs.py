"""A read-only file system over files of this machine, as Linux's EROFS reads it from a disk.

Nothing is copied: only the metadata is made, and the disk's blocks of data are those of the files
where they lie. So a guest sees gigabytes of the host after a second, reads what it uses, and keeps
it in its own page cache. EROFS is the simplest such format that the guest's kernel knows:

    superblock (at 1024) | inodes of 64 bytes | data of folders and links | data of files

Everything is little-endian, in blocks of 4096 bytes; each item of data begins with a block.
Only what every user of this machine may read is shown, to all users of the guest.
"""

from __future__ import annotations

import os
import stat
import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from testbed.errors import TestbedError

BLOCK_BYTES = 4096
MAGIC = 0xE0F5E1E2
SUPERBLOCK_OFFSET = 1024
SUPERBLOCK = struct.Struct("<IIIBBHQQIIII16s16sI44x")
INODE = struct.Struct("<HHHHQIIIIQII16x")
ENTRY = struct.Struct("<QHBx")
INODE_UNIT_BYTES = 32  # what an inode's number counts
INODES_OFFSET = SUPERBLOCK_OFFSET + SUPERBLOCK.size
EXTENDED_PLAIN = 1  # format of an inode: 64 bytes, data in whole blocks, not compressed
FOLDER_MODE = stat.S_IFDIR | 0o755
ENTRIES_MAX = 4_000_000
OPEN_FILES_MAX = 256
LINKS_MAX = 40  # as the kernel follows

#: Kinds of entries, as in a folder's data.
ENTRY_KINDS = {stat.S_IFREG: 1, stat.S_IFDIR: 2, stat.S_IFLNK: 7}


@dataclass
class _Node:
    """A file (`source` is its path), a link (its target) or a folder (no source, `children`)."""

    mode: int
    mtime_ns: int = 0
    size_bytes: int = 0
    source: str | bytes = b""
    children: dict[bytes, _Node] = field(default_factory=dict)
    number: int = 0
    block: int = 0


@dataclass(frozen=True)
class Piece:
    """Data of the disk from a block on: bytes, or those of the file at a path."""

    block: int
    size_bytes: int
    source: bytes | str


class Tree:
    """A disk with such a file system; `pieces` are in the order of their blocks."""

    def __init__(self, pieces: Sequence[Piece], files: int) -> None:
        self.pieces = pieces
        self.files = files
        last = pieces[-1]
        self.size_bytes = (last.block + _blocks(last.size_bytes)) * BLOCK_BYTES
        self._starts = [piece.block * BLOCK_BYTES for piece in pieces]

    def reader(self) -> TreeReader:
        """A reader with open files of its own, for one thread."""
        return TreeReader(self, self._starts)


class TreeReader:
    """Reads the disk; what no piece holds is zero."""

    def __init__(self, tree: Tree, starts: Sequence[int]) -> None:
        self._tree = tree
        self._starts = starts
        self._open: OrderedDict[str, int] = OrderedDict()

    def read(self, offset: int, size_bytes: int) -> bytearray:
        """Bytes of the disk.  Raises OSError if a file is gone or has become shorter."""
        target = bytearray(size_bytes)
        view = memoryview(target)
        end = offset + size_bytes
        at = max(0, bisect_right(self._starts, offset) - 1)
        while at < len(self._starts) and self._starts[at] < end:
            piece, start = self._tree.pieces[at], self._starts[at]
            begin, stop = max(offset, start), min(end, start + piece.size_bytes)
            if begin < stop:
                self._copy(piece, begin - start, view[begin - offset : stop - offset])
            at += 1
        return target

    def close(self) -> None:
        """Close the files."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _copy(self, piece: Piece, offset: int, target: memoryview) -> None:
        if isinstance(piece.source, bytes):
            target[:] = piece.source[offset : offset + len(target)]
            return
        descriptor = self._descriptor(piece.source)
        while target:
            count = os.preadv(descriptor, [target], offset)
            if count == 0:
                raise OSError(f"{piece.source} has become shorter while it was shared")
            target, offset = target[count:], offset + count

    def _descriptor(self, path: str) -> int:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        if len(self._open) >= OPEN_FILES_MAX:
            os.close(self._open.popitem(last=False)[1])
        descriptor = _open_without_links(path)
        if _node(path, os.fstat(descriptor)) is None:
            os.close(descriptor)
            raise OSError(f"{path} is no longer a file that all may read")
        self._open[path] = descriptor
        return descriptor


def _open_without_links(path: str) -> int:
    """Open a file where no part of its path is a link: none was when it was listed."""
    *folders, name = path.split("/")[1:]
    place = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(folder, flags, dir_fd=place)
            os.close(place)
            place = inner
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(name, flags, dir_fd=place)
    finally:
        os.close(place)


def host_tree(paths: Iterable[Path], empty: Iterable[PurePosixPath] = ()) -> Tree:
    """The disk that shows files and folders of this machine at their own places.

    `paths` are absolute; one that does not exist is left out, and links on the way to one are
    shown as links. `empty` are folders besides, to mount others on. Raises TestbedError if there is
    too much to list.
    """
    root = _Node(FOLDER_MODE)
    count = 0
    for step in sorted({step for path in paths for step in _steps(path)}):
        count += _show(root, step, ENTRIES_MAX - count)
    for place in empty:
        _folder(root, place)
    return _laid_out(root)


def _steps(path: Path) -> list[Path]:
    """The links on the way to a path, each at its real place, and the place where it ends."""
    steps: list[Path] = []
    place = Path("/")
    ahead = list(reversed(path.parts[1:]))
    while ahead:
        part = ahead.pop()
        there = place.parent if part == ".." else place / part
        if not there.is_symlink():
            place = there
            continue
        steps.append(there)
        if len(steps) > LINKS_MAX:
            return []  # a loop: nothing lies there
        target = there.readlink()
        place = Path("/") if target.is_absolute() else place
        ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    # The root itself is no answer: nobody means to show the whole machine.
    return [*steps, place] if place != Path("/") else steps


def _show(root: _Node, path: Path, limit: int) -> int:
    """Put a path with all below it into the tree; returns how many entries that were."""
    try:
        status = path.lstat()
    except OSError:
        return 0
    node = _node(str(path), status)
    if node is None:
        return 0
    parent = _folder(root, PurePosixPath(path).parent)
    known = parent.children.get(os.fsencode(path.name))
    if known is not None and stat.S_ISDIR(known.mode) and stat.S_ISDIR(node.mode):
        node = known  # the way to another path, or an empty folder: now with what is in it
    parent.children[os.fsencode(path.name)] = node
    return 1 + (_fill(node, str(path), limit - 1) if stat.S_ISDIR(node.mode) else 0)


def _fill(folder: _Node, path: str, limit: int) -> int:
    count = 0
    waiting = [(folder, path)]
    while waiting:
        node, place = waiting.pop()
        try:
            entries = list(os.scandir(place))
        except OSError:
            continue
        for entry in entries:
            try:
                child = _node(entry.path, entry.stat(follow_symlinks=False))
            except OSError:
                continue
            if child is None:
                continue
            count += 1
            name = os.fsencode(entry.name)
            if stat.S_ISDIR(child.mode):
                child = node.children.setdefault(name, child)
                waiting.append((child, entry.path))
            else:
                node.children[name] = child
        if count > limit:
            raise TestbedError(
                f"there are more than {ENTRIES_MAX} files to share with the guest, many in {path}",
                "share fewer folders",
            )
    return count


def _node(path: str, status: os.stat_result) -> _Node | None:
    """A path's node, without children; None for what is no file or not everybody's to read."""
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFLNK:
        target = os.fsencode(Path(path).readlink())
        return _Node(kind | 0o777, status.st_mtime_ns, len(target), target)
    needed = stat.S_IROTH | (stat.S_IXOTH if kind == stat.S_IFDIR else 0)
    if kind not in ENTRY_KINDS or status.st_mode & needed != needed:
        return None
    # Neither set-user-id nor owners: in the guest they would be other people's.
    mode = kind | (status.st_mode & 0o755)
    if kind == stat.S_IFDIR:
        return _Node(mode, status.st_mtime_ns)
    return _Node(mode, status.st_mtime_ns, status.st_size, path)


def _folder(root: _Node, place: PurePosixPath) -> _Node:
    """The node of a folder, made with all above it if it is not there."""
    node = root
    for name in place.parts[1:]:
        child = node.children.setdefault(os.fsencode(name), _Node(FOLDER_MODE))
        if not stat.S_ISDIR(child.mode):
            raise TestbedError(f"{place} cannot be shared with the guest: {name} is no folder")
        node = child
    return node


# ---- the format ----


def _laid_out(root: _Node) -> Tree:
    """Number the nodes, give each its blocks, and write what describes them."""
    nodes = [root]
    parents = [root]
    for at, node in enumerate(nodes):  # grows as it goes: what lies in one folder lies together
        node.number = (INODES_OFFSET + at * INODE.size) // INODE_UNIT_BYTES
        nodes += node.children.values()
        parents += [node] * len(node.children)
    block = _blocks(INODES_OFFSET + len(nodes) * INODE.size)
    pieces: list[Piece] = []
    order = sorted(nodes, key=lambda node: stat.S_ISREG(node.mode))  # metadata first
    above = {id(node): parent for node, parent in zip(nodes, parents, strict=True)}
    for node in order:
        source = node.source
        if stat.S_ISDIR(node.mode):
            source = _folder_data(node, above[id(node)])
            node.size_bytes = len(source)
        node.block = block
        if node.size_bytes:
            pieces.append(Piece(block, node.size_bytes, source))
        block += _blocks(node.size_bytes)
    table = b"".join(_inode(node) for node in nodes)
    head = b"\0" * SUPERBLOCK_OFFSET + _superblock(root, len(nodes), block) + table
    return Tree([Piece(0, len(head), head), *pieces], len(nodes))


def _superblock(root: _Node, inodes: int, blocks: int) -> bytes:
    return SUPERBLOCK.pack(
        MAGIC,
        *(0, 0),  # no checksum, no compatible features
        BLOCK_BYTES.bit_length() - 1,
        0,
        root.number,
        inodes,
        *(0, 0),  # built at
        blocks,
        *(0, 0),  # inodes and extended attributes count from block 0
        *(b"", b"wormhole-host"),
        0,  # no incompatible features
    )


def _inode(node: _Node) -> bytes:
    seconds, nanoseconds = divmod(node.mtime_ns, 10**9)
    links = 2 if stat.S_ISDIR(node.mode) else 1
    # Its number for 32-bit systems, and the owners, are 0.
    return INODE.pack(
        *(EXTENDED_PLAIN, 0, node.mode, 0, node.size_bytes, node.block),
        *(0, 0, 0, max(seconds, 0), nanoseconds, links),
    )


def _folder_data(node: _Node, parent: _Node) -> bytes:
    """A folder's entries in the order of their names, in blocks: entries first, then the names."""
    kind = ENTRY_KINDS[stat.S_IFDIR]
    entries = [(b".", node.number, kind), (b"..", parent.number, kind)]
    entries += [
        (name, child.number, ENTRY_KINDS[stat.S_IFMT(child.mode)])
        for name, child in node.children.items()
    ]
    blocks: list[list[tuple[bytes, int, int]]] = [[]]
    used = 0
    for entry in sorted(entries):
        size = ENTRY.size + len(entry[0])
        if used + size > BLOCK_BYTES:
            blocks.append([])
            used = 0
        blocks[-1].append(entry)
        used += size
    return b"".join(_folder_block(block) for block in blocks)


def _folder_block(entries: Sequence[tuple[bytes, int, int]]) -> bytes:
    head, names = b"", b""
    offset = len(entries) * ENTRY.size
    for name, number, kind in entries:
        head += ENTRY.pack(number, offset + len(names), kind)
        names += name
    return (head + names).ljust(BLOCK_BYTES, b"\0")


def _blocks(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES)
