"""The Python view of wire.yaml: packs, unpacks and pokes the structures of the C side."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache

from testbed.protocol.spec import Field, Struct, Wire, load_wire, spec_hash

_CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "s32": "i", "s64": "q"}


@cache
def wire() -> Wire:
    """The loaded contract."""
    return load_wire()


def constant(name: str) -> int:
    """Value of a constant of wire.yaml, e.g. constant("magic")."""
    return wire().constant(name)


@cache
def enum(name: str) -> dict[str, int]:
    """Entries of an enum by name, e.g. enum("host_state")["ready"]."""
    for entry in wire().enums:
        if entry.name == name:
            return {value.name: value.value for value in entry.entries}
    raise KeyError(name)


@cache
def hash_of_specs() -> int:
    """The 64-bit number that both sides compare (WH_SPEC_HASH)."""
    return spec_hash()


@dataclass(frozen=True)
class View:
    """One structure. Byte arrays are `bytes`, everything else `int`."""

    definition: Struct

    @property
    def size_bytes(self) -> int:
        """sizeof in C."""
        return self.definition.size_bytes

    def field(self, name: str) -> Field:
        """A member; KeyError if the structure has none of that name."""
        for entry in self.definition.fields:
            if entry.name == name:
                return entry
        raise KeyError(f"{self.definition.name}.{name}")

    def offset(self, name: str) -> int:
        """offsetof in C, in bytes."""
        return self.field(name).offset_bytes

    def pack(self, **values: int | bytes) -> bytes:
        """Bytes of the structure; members not named are zero, short byte arrays are padded."""
        buffer = bytearray(self.size_bytes)
        for name, value in values.items():
            self.store(buffer, 0, name, value)
        return bytes(buffer)

    def unpack(self, data: bytes | bytearray | memoryview) -> dict[str, int | bytes]:
        """All members by name. `data` must have at least size_bytes."""
        return {entry.name: self._load(data, 0, entry) for entry in self.definition.fields}

    def load(self, buffer: bytes | bytearray | memoryview, base: int, name: str) -> int:
        """One integer member of the structure that lies at `base` of a buffer (a mapped region)."""
        value = self._load(buffer, base, self.field(name))
        if not isinstance(value, int):
            raise TypeError(f"{self.definition.name}.{name} is a byte array")
        return value

    def store(
        self, buffer: bytearray | memoryview, base: int, name: str, value: int | bytes
    ) -> None:
        """Writes one member. An aligned integer is stored with one copy of its width."""
        entry = self.field(name)
        if isinstance(value, bytes):
            if entry.count == 1 or len(value) > entry.count:
                raise ValueError(f"{len(value)} bytes do not fit {self.definition.name}.{name}")
            struct.pack_into(f"<{entry.count}s", buffer, base + entry.offset_bytes, value)
            return
        if entry.count != 1:
            raise ValueError(f"{self.definition.name}.{name} needs bytes")
        struct.pack_into("<" + _CODES[entry.type], buffer, base + entry.offset_bytes, value)

    def _load(self, buffer: bytes | bytearray | memoryview, base: int, entry: Field) -> int | bytes:
        if entry.count > 1:
            start = base + entry.offset_bytes
            return bytes(buffer[start : start + entry.count])
        code = "<" + _CODES[entry.type]
        value: int = struct.unpack_from(code, buffer, base + entry.offset_bytes)[0]
        return value


@cache
def view(name: str) -> View:
    """View of a structure of wire.yaml, e.g. view("hello").pack(magic=constant("magic"))."""
    for entry in wire().structs:
        if entry.name == name:
            return View(entry)
    raise KeyError(name)
