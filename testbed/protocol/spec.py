"""Loads and validates the YAML specs into frozen models."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from testbed.errors import TestbedError
from testbed.protocol.expand import expanded

PROTOCOL_DIR = Path(__file__).resolve().parent
#: Libraries of CUDA that a client loads in the place of the real ones.
CUDA_NAMES = ("cudart", "cublas", "cublaslt", "cudnn", "driver", "nvml")
SPEC_NAMES = ("wire", "core", "opencl", *CUDA_NAMES)
SPECS_VARIABLE = "WORMHOLE_SPECS"

FIELD_BYTES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "s32": 4, "s64": 8}


@dataclass(frozen=True)
class Constant:
    """A named number of the wire contract."""

    name: str
    value: int
    doc: str


@dataclass(frozen=True)
class Enum:
    """A named set of numbers; flags and states."""

    name: str
    doc: str
    entries: tuple[Constant, ...]


@dataclass(frozen=True)
class Field:
    """One member of a structure. `offset_bytes` is computed and asserted in C."""

    name: str
    type: str
    count: int
    offset_bytes: int
    doc: str


@dataclass(frozen=True)
class Struct:
    """A structure that both sides lay over the same bytes."""

    name: str
    doc: str
    fields: tuple[Field, ...]
    size_bytes: int


@dataclass(frozen=True)
class Wire:
    """Everything in wire.yaml."""

    version: int
    constants: tuple[Constant, ...]
    enums: tuple[Enum, ...]
    structs: tuple[Struct, ...]

    def constant(self, name: str) -> int:
        """Value of a constant; KeyError if the contract has none of that name."""
        for entry in self.constants:
            if entry.name == name:
                return entry.value
        raise KeyError(name)


def spec_path(name: str) -> Path:
    """Path of a spec: the repository's, or of the folder that the environment names.

    A supervisor reads the specs that its worker was built from, so that an edit of the repository's
    in the middle of a run does not set the two at odds.
    """
    return Path(os.environ.get(SPECS_VARIABLE) or PROTOCOL_DIR) / f"{name}.yaml"


def read_spec(path: Path, schema_name: str) -> dict[str, Any]:
    """Reads a YAML spec and checks it against its schema.

    Raises TestbedError naming file and path inside it.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TestbedError(f"cannot read spec {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise TestbedError(f"spec {path} is not valid YAML: {error}") from error
    schema_path = PROTOCOL_DIR / "schema" / f"{schema_name}.json"
    schema = json.loads(schema_path.read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    errors = sorted(validator.iter_errors(data), key=lambda e: [str(p) for p in e.absolute_path])
    if errors:
        first = jsonschema.exceptions.best_match(errors)
        where = _where(data, first.absolute_path)
        raise TestbedError(
            f"{path.name}: {where}: {first.message}",
            f"see testbed/protocol/schema/{schema_name}.json",
        )
    assert isinstance(data, dict)
    return data


def _where(data: Any, path: Any) -> str:
    """Path of an error, with the names of list entries where they have one."""
    text = "$"
    here = data
    for part in path:
        here = here[part]
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
        if isinstance(part, int) and isinstance(here, dict) and "name" in here:
            text += f"({here['name']})"
    return text


def exports(name: str) -> tuple[str, ...]:
    """Names that a CUDA library exports, whether they are forwarded or not."""
    path = PROTOCOL_DIR / "exports" / f"{name}.txt"
    try:
        return tuple(path.read_text(encoding="utf-8").split())
    except OSError as error:
        raise TestbedError(f"cannot read the exports {path}: {error.strerror}") from error


def load_wire(path: Path | None = None) -> Wire:
    """Loads wire.yaml; raises TestbedError on misaligned fields and duplicate names."""
    path = path or spec_path("wire")
    data = read_spec(path, "wire")
    structs = tuple(_load_struct(path, entry) for entry in data["structs"])
    wire = Wire(
        version=data["version"],
        constants=tuple(_constant(entry) for entry in data["constants"]),
        enums=tuple(
            Enum(e["name"], e.get("doc", ""), tuple(_constant(v) for v in e["entries"]))
            for e in data["enums"]
        ),
        structs=structs,
    )
    for what, names in (
        ("constants", [c.name for c in wire.constants]),
        ("enums", [e.name for e in wire.enums]),
        ("structs", [s.name for s in wire.structs]),
    ):
        _refuse_duplicates(path, f"$.{what}", names)
    return wire


def _constant(entry: dict[str, Any]) -> Constant:
    return Constant(entry["name"], entry["value"], entry.get("doc", ""))


def _refuse_duplicates(path: Path, where: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise TestbedError(f"{path.name}: {where}: {name!r} is defined twice", "rename one")


def _load_struct(path: Path, entry: dict[str, Any]) -> Struct:
    offset = 0
    largest = 1
    fields = []
    for field in entry["fields"]:
        unit = FIELD_BYTES[field["type"]]
        count = field.get("count", 1)
        if offset % unit != 0:
            raise TestbedError(
                f"{path.name}: $.structs({entry['name']}).fields({field['name']}): offset {offset} "
                f"is not a multiple of {unit}",
                "write the padding out",
            )
        fields.append(Field(field["name"], field["type"], count, offset, field.get("doc", "")))
        offset += unit * count
        largest = max(largest, unit)
    if offset % largest != 0:
        raise TestbedError(
            f"{path.name}: $.structs({entry['name']}): size {offset} is no multiple of {largest}",
            "write the padding at the end out",
        )
    _refuse_duplicates(path, f"$.structs({entry['name']})", [f.name for f in fields])
    return Struct(entry["name"], entry.get("doc", ""), tuple(fields), offset)


def spec_hash() -> int:
    """First 8 bytes of the SHA-256 over all specs, little endian; both sides compare it."""
    digest = hashlib.sha256()
    for name in SPEC_NAMES:
        digest.update(name.encode() + b"\0" + spec_path(name).read_bytes() + b"\0")
    return int.from_bytes(digest.digest()[:8], "little")


@dataclass(frozen=True)
class Handle:
    """A kind of object; `kind` is the top byte of its handles."""

    name: str
    kind: int
    type: str
    error: str


@dataclass(frozen=True)
class Argument:
    """One parameter of a function: what one of the keys after `callback` says, else a value."""

    name: str
    type: str
    callback: str
    awaited: bool
    handle: str
    optional: bool
    handles: str
    count: str
    in_bytes: str
    padded: str
    string: bool
    strings: bool
    out: str
    size: str
    written: str
    out_event: bool
    errcode: bool
    creates: str
    scalar: str
    inout: str
    result: str
    content: str

    @property
    def is_value(self) -> bool:
        """A plain number that is sent as it is."""
        special: tuple[str, ...] = (self.callback, self.handle, self.handles, self.in_bytes)
        special += (self.out, self.creates, self.scalar, self.inout, self.result, self.content)
        marks = (self.string, self.strings, self.out_event, self.errcode, self.is_callback_data)
        return not any(special) and not any(marks)

    @property
    def is_callback_data(self) -> bool:
        """What the application's own callback gets; it stays with the callback."""
        return self.name == "user_data"

    @property
    def declaration(self) -> str:
        """The parameter in C."""
        if self.callback:
            return self.callback.replace("*)", f"*{self.name})", 1)
        return f"{self.type}{'' if self.type.endswith('*') else ' '}{self.name}"


@dataclass(frozen=True)
class Truth:
    """What the skeleton makes of one of the real library's answers."""

    query: str
    rule: str
    bits: str


@dataclass(frozen=True)
class Function:
    """One function of an API and how it crosses."""

    name: str
    opcode: int
    doc: str
    returns: str
    mode: str
    modifies: bool
    blocks: str
    creates: str
    releases: str
    command: str
    prepare: str
    answers: str
    reason: str
    calls: str
    by_name: tuple[str, ...]
    truth: tuple[Truth, ...]
    immutable: str
    opaque: tuple[str, ...]
    volatile: tuple[str, ...]
    differs: tuple[tuple[str, str], ...]
    keep_function: str
    keep_arguments: tuple[str, ...]
    manual_stub: str
    manual_skeleton: str
    args: tuple[Argument, ...]

    @property
    def forwarded(self) -> bool:
        """Whether a message for it exists."""
        return self.mode not in ("local", "answered", "unsupported", "make", "drop")

    @property
    def backend(self) -> str:
        """Name of the backend's function."""
        return self.calls or self.name


@dataclass(frozen=True)
class Library:
    """A shared library that ours stands in for, and the results that every function can have."""

    soname: str
    node: str
    status: str
    success: int
    lost: int
    unsupported: int
    memory: int
    invalid: int
    prepare: str = ""
    placed: str = ""
    shared_header: str = ""
    stub_header: str = ""
    worker_header: str = ""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Content:
    """A kind of descriptor that is only values: the client keeps them, they travel with calls."""

    name: str
    create: str
    destroy: str


@dataclass(frozen=True)
class Api:
    """A spec of functions; CUDA's have a library and C types of their own."""

    name: str
    version: int
    handles: tuple[Handle, ...]
    extensions: tuple[str, ...]
    functions: tuple[Function, ...]
    library: Library | None = None
    types: tuple[tuple[str, str], ...] = ()
    contents: tuple[Content, ...] = ()

    @property
    def crosses(self) -> bool:
        """Whether there are messages for it."""
        return any(function.forwarded for function in self.functions)

    def handle(self, name: str) -> Handle:
        """A kind by name; KeyError if the spec has none."""
        for entry in self.handles:
            if entry.name == name:
                return entry
        raise KeyError(name)


def load_api(name: str, path: Path | None = None) -> Api:
    """Loads a spec of functions; TestbedError on duplicates and on names that do not exist."""
    path = path or spec_path(name)
    data = expanded(read_spec(path, "functions"))
    handles = tuple(
        Handle(h["name"], h["kind"], h["type"], h["error"]) for h in data.get("handles", [])
    )
    extensions = tuple(name for entry in data.get("extensions", []) for name in entry["names"])
    functions = tuple(map(_function, data["functions"]))
    library = _library(data["library"]) if "library" in data else None
    types = tuple(data.get("types", {}).items())
    contents = tuple(Content(**entry) for entry in data.get("contents", ()))
    api = Api(
        data["name"], data["version"], handles, extensions, functions, library, types, contents
    )
    _refuse_duplicates(path, "$.extensions", list(api.extensions))
    _refuse_duplicates(path, "$.functions", [f.name for f in api.functions])
    _refuse_duplicates(path, "$.functions opcode", [hex(f.opcode) for f in api.functions])
    for function in api.functions:
        _check_function(path, api, function)
    return api


def _library(entry: dict[str, Any]) -> Library:
    return Library(**{**entry, "needs": tuple(entry.get("needs", ()))})


def _check_function(path: Path, api: Api, function: Function) -> None:
    where = f"$.functions({function.name})"
    names = [argument.name for argument in function.args]
    _refuse_duplicates(path, f"{where}.args", names)
    kinds = {handle.name for handle in api.handles}
    used = [function.creates, function.releases]
    used += [kind for a in function.args for kind in (a.handle, a.handles, a.creates)]
    for kind in used:
        if kind and kind not in kinds:
            raise TestbedError(
                f"{path.name}: {where}: unknown handle kind {kind!r}",
                f"one of {', '.join(sorted(kinds))}",
            )
    for argument in function.args:
        if argument.count and argument.count not in names:
            raise TestbedError(
                f"{path.name}: {where}.args({argument.name}): count {argument.count!r} is no "
                "argument",
                f"one of {', '.join(names)}",
            )
    if (function.mode == "answered") != bool(function.answers):
        raise TestbedError(
            f"{path.name}: {where}: mode `answered` and key `answers` belong together",
            "give both or neither",
        )
    if function.blocks not in ("", "true") and function.blocks not in names:
        raise TestbedError(
            f"{path.name}: {where}.blocks: {function.blocks!r} is no argument",
            f"true or one of {', '.join(names)}",
        )


def _function(entry: dict[str, Any]) -> Function:
    keep = entry.get("keep", {})
    manual = entry.get("manual", {})
    blocks = entry.get("blocks", "")
    volatile = entry.get("volatile", [])
    return Function(
        name=entry["name"],
        opcode=entry["opcode"],
        doc=entry.get("doc", ""),
        returns=entry.get("returns", "int"),
        mode=entry["mode"],
        modifies=entry.get("modifies", False),
        blocks="true" if blocks is True else blocks,
        creates=entry.get("creates", ""),
        releases=entry.get("releases", ""),
        command=entry.get("command", ""),
        prepare=entry.get("prepare", ""),
        answers=entry.get("answers", ""),
        reason=entry.get("reason", ""),
        calls=entry.get("calls", ""),
        by_name=tuple(entry.get("by_name", ())),
        truth=tuple(
            Truth(item["query"], item["rule"], item.get("bits", "0"))
            for item in entry.get("truth", ())
        ),
        immutable=entry.get("immutable", ""),
        opaque=tuple(entry.get("opaque", ())),
        volatile=("all",) if volatile == "all" else tuple(volatile),
        differs=tuple(entry.get("differs", {}).items()),
        keep_function=keep.get("function", ""),
        keep_arguments=tuple(keep.get("arguments", ())),
        manual_stub=manual.get("stub", ""),
        manual_skeleton=manual.get("skeleton", ""),
        args=tuple(map(_argument, entry["args"])),
    )


def _argument(entry: dict[str, Any]) -> Argument:
    return Argument(
        name=entry["name"],
        type=entry.get("type", ""),
        callback=entry.get("callback", ""),
        awaited=entry.get("awaited", False),
        handle=entry.get("handle", ""),
        optional=entry.get("optional", False),
        handles=entry.get("handles", ""),
        count=entry.get("count", ""),
        in_bytes=entry.get("in", ""),
        padded=entry.get("padded", ""),
        string=entry.get("string", False),
        strings=entry.get("strings", False),
        out=entry.get("out", ""),
        size=entry.get("size", ""),
        written=entry.get("written", ""),
        out_event=entry.get("out_event", False),
        errcode=entry.get("errcode", False),
        creates=entry.get("creates", ""),
        scalar=entry.get("scalar", ""),
        inout=entry.get("inout", ""),
        result=entry.get("result", ""),
        content=entry.get("content", ""),
    )
