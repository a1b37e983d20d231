"""Reading YAML settings so that every mistake names its file, its line and the key that was meant.

`load` gives the top mapping as a `Section`.  A reader takes each key that it knows with a typed
getter and calls `finish()`, which rejects whatever was not taken:

    section = load(path)
    name = section.text("name")
    steps = section.integer("steps", minimum=1)
    data = section.section("data")
    ...
    section.finish()
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import yaml

from testbed.errors import TestbedError

FILE_SIZE_LIMIT_BYTES = 1 << 20
DEPTH_LIMIT = 32

_Default = TypeVar("_Default")


class _Required:
    """The type of `REQUIRED`: the absence of a default value."""


REQUIRED = _Required()

_KIND_NAMES: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
    type(None): "empty",
}


def load(path: Path) -> Section:
    """Read a YAML file whose top level is a mapping.

    Raises TestbedError, naming file and line, if it cannot be read or is not such a file.
    """
    try:
        if path.stat().st_size > FILE_SIZE_LIMIT_BYTES:
            raise TestbedError(
                f"{path} is larger than {FILE_SIZE_LIMIT_BYTES} bytes", "is this a settings file?"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TestbedError(
            f"cannot read {path}: {error.strerror or error}", "check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise TestbedError(f"{path} is not UTF-8 text: {error}", "save it as UTF-8") from error
    return parse(text, path)


def parse(text: str, path: Path) -> Section:
    """Read YAML text; `path` is named in errors.  Raises TestbedError as `load` does."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise TestbedError(f"{path} is empty", "write at least `name: ...`")
        if not isinstance(node, yaml.MappingNode):
            raise _error(path, node, "the top level must be `key: value` lines", "see the examples")
        return Section(path, "", node, loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        problem = getattr(error, "problem", None) or str(error)
        raise TestbedError(
            f"{where}: not valid YAML: {problem}", "check indentation and colons there"
        ) from error


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The known word that was probably meant, or None if none is close."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return found[0] if found else None


class Section:
    """A mapping of a YAML file, read key by key.

    `name` is its dotted place in the file ("" at the top).  Getters raise TestbedError with file,
    line and key when the value is missing or of another type; `finish` for keys nobody took.
    """

    def __init__(
        self, path: Path, name: str, node: yaml.MappingNode, loader: yaml.SafeLoader
    ) -> None:
        self.path = path
        self.name = name
        self.line: int = node.start_mark.line + 1
        self._loader = loader
        self._nodes: dict[str, yaml.Node] = {}
        self._key_lines: dict[str, int] = {}
        self._known: dict[str, None] = {}
        if name.count(".") > DEPTH_LIMIT:
            raise _error(path, node, f"nested deeper than {DEPTH_LIMIT} levels", "flatten it")
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key in self._nodes:
                raise _error(
                    path,
                    key_node,
                    f"`{key}` stands twice, first in line {self._key_lines[key]}",
                    "keep one of them",
                )
            self._nodes[key] = value_node
            self._key_lines[key] = key_node.start_mark.line + 1

    def __contains__(self, key: str) -> bool:
        return key in self._nodes

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys, in the order of the file."""
        return tuple(self._nodes)

    def where(self, key: str | None = None) -> str:
        """`file:line` of a key, or of the section itself."""
        return f"{self.path}:{self._key_lines.get(key or '', self.line)}"

    def error(self, key: str, problem: str, remedy: str = "") -> TestbedError:
        """An error about a key's value, for checks that only the caller can make."""
        return TestbedError(f"{self.where(key)}: `{self._dotted(key)}` {problem}", remedy)

    @overload
    def text(self, key: str) -> str: ...
    @overload
    def text(self, key: str, default: _Default) -> str | _Default: ...
    def text(self, key: str, default: Any = REQUIRED) -> Any:
        """Text.  A number or date written without quotes is not text: it is an error."""
        return self._scalar(key, default, (str,), "text")

    @overload
    def choice(self, key: str, allowed: Sequence[str]) -> str: ...
    @overload
    def choice(self, key: str, allowed: Sequence[str], default: _Default) -> str | _Default: ...
    def choice(self, key: str, allowed: Sequence[str], default: Any = REQUIRED) -> Any:
        """One of a few words."""
        value = self.text(key, default)
        if key in self._nodes:
            self._check_choice(key, value, allowed)
        return value

    @overload
    def integer(self, key: str, *, minimum: int | None = ..., maximum: int | None = ...) -> int: ...
    @overload
    def integer(
        self,
        key: str,
        default: _Default,
        *,
        minimum: int | None = ...,
        maximum: int | None = ...,
    ) -> int | _Default: ...
    def integer(
        self,
        key: str,
        default: Any = REQUIRED,
        *,
        minimum: int | None = None,
        maximum: int | None = None,
    ) -> Any:
        """A whole number within the bounds (both included)."""
        value = self._scalar(key, default, (int,), "a whole number")
        if key in self._nodes:
            self._check_bounds(key, value, minimum, maximum)
        return value

    @overload
    def number(
        self, key: str, *, minimum: float | None = ..., maximum: float | None = ...
    ) -> float: ...
    @overload
    def number(
        self,
        key: str,
        default: _Default,
        *,
        minimum: float | None = ...,
        maximum: float | None = ...,
    ) -> float | _Default: ...
    def number(
        self,
        key: str,
        default: Any = REQUIRED,
        *,
        minimum: float | None = None,
        maximum: float | None = None,
    ) -> Any:
        """A finite number within the bounds (both included)."""
        value = self._scalar(key, default, (int, float), "a number")
        if key not in self._nodes:
            return value
        if value != value or value in (float("inf"), float("-inf")):
            raise self.error(key, f"is {value}, not a finite number", "write a number")
        self._check_bounds(key, value, minimum, maximum)
        return float(value)

    @overload
    def boolean(self, key: str) -> bool: ...
    @overload
    def boolean(self, key: str, default: _Default) -> bool | _Default: ...
    def boolean(self, key: str, default: Any = REQUIRED) -> Any:
        """true or false (also on, off, yes, no)."""
        return self._scalar(key, default, (bool,), "true or false")

    @overload
    def texts(self, key: str, *, allowed: Sequence[str] | None = ...) -> tuple[str, ...]: ...
    @overload
    def texts(
        self, key: str, default: _Default, *, allowed: Sequence[str] | None = ...
    ) -> tuple[str, ...] | _Default: ...
    def texts(
        self, key: str, default: Any = REQUIRED, *, allowed: Sequence[str] | None = None
    ) -> Any:
        """A list of texts without repetition of an `allowed` word."""
        items = self._list(key, default, (str,), "text")
        if key in self._nodes and allowed is not None:
            for item in items:
                self._check_choice(key, item, allowed)
            self._check_distinct(key, items)
        return items

    @overload
    def integers(self, key: str) -> tuple[int, ...]: ...
    @overload
    def integers(self, key: str, default: _Default) -> tuple[int, ...] | _Default: ...
    def integers(self, key: str, default: Any = REQUIRED) -> Any:
        """A list of whole numbers."""
        return self._list(key, default, (int,), "a whole number")

    @overload
    def numbers(self, key: str) -> tuple[float, ...]: ...
    @overload
    def numbers(self, key: str, default: _Default) -> tuple[float, ...] | _Default: ...
    def numbers(self, key: str, default: Any = REQUIRED) -> Any:
        """A list of numbers."""
        items = self._list(key, default, (int, float), "a number")
        return tuple(float(item) for item in items) if key in self._nodes else items

    def text_map(self, key: str) -> dict[str, str]:
        """A mapping of names to texts (numbers are taken as written); empty if absent."""
        inner = self.section(key, None)
        if inner is None:
            return {}
        return {name: inner._as_written(name) for name in inner.keys}

    @overload
    def section(self, key: str) -> Section: ...
    @overload
    def section(self, key: str, default: None) -> Section | None: ...
    def section(self, key: str, default: Any = REQUIRED) -> Any:
        """The mapping under a key; the caller must `finish` it."""
        node = self._take(key, default)
        if node is None:
            return default
        if not isinstance(node, yaml.MappingNode):
            raise self._wrong_type(key, node, "a mapping")
        return Section(self.path, self._dotted(key), node, self._loader)

    @overload
    def sections(self, key: str) -> tuple[Section, ...]: ...
    @overload
    def sections(self, key: str, default: _Default) -> tuple[Section, ...] | _Default: ...
    def sections(self, key: str, default: Any = REQUIRED) -> Any:
        """A list of mappings; the caller must `finish` each."""
        node = self._take(key, default)
        if node is None:
            return default
        if not isinstance(node, yaml.SequenceNode):
            raise self._wrong_type(key, node, "a list")
        found = []
        for index, item in enumerate(node.value):
            if not isinstance(item, yaml.MappingNode):
                raise self._wrong_type(f"{key}[{index}]", item, "a mapping")
            name = f"{self._dotted(key)}[{index}]"
            found.append(Section(self.path, name, item, self._loader))
        return tuple(found)

    def texts_or_sections(self, key: str) -> tuple[str | Section, ...]:
        """A list whose items are texts or mappings, where a short form is allowed."""
        node = self._take(key, REQUIRED)
        if not isinstance(node, yaml.SequenceNode):
            raise self._wrong_type(key, node, "a list")
        found: list[str | Section] = []
        for index, item in enumerate(node.value):
            if isinstance(item, yaml.MappingNode):
                name = f"{self._dotted(key)}[{index}]"
                found.append(Section(self.path, name, item, self._loader))
                continue
            value = self._construct(item)
            if not isinstance(value, str):
                raise self._wrong_type(f"{key}[{index}]", item, "text or a mapping")
            found.append(value)
        return tuple(found)

    def value(self, key: str, default: Any = REQUIRED) -> Any:
        """Any value, as plain Python objects (for parameters that a program interprets itself)."""
        node = self._take(key, default)
        return default if node is None else self._construct(node)

    def finish(self) -> None:
        """Reject the first key that no getter asked for, naming the nearest one that was."""
        for key in self._nodes:
            if key not in self._known:
                near = nearest(key, list(self._known))
                remedy = (
                    f"did you mean `{near}`?"
                    if near
                    else f"valid keys here: {', '.join(sorted(self._known))}"
                )
                raise TestbedError(f"{self.where(key)}: unknown key `{self._dotted(key)}`", remedy)

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag == "tag:yaml.org,2002:merge":
            raise _error(self.path, node, "a key must be plain text", "write `key: value`")
        # The text as written: YAML 1.1 would turn the keys `on` and `off` into booleans.
        return str(node.value)

    def _dotted(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def _take(self, key: str, default: object) -> yaml.Node | None:
        self._known[key] = None
        node = self._nodes.get(key)
        if node is None and default is REQUIRED:
            # A required key that is missing was probably misspelt: name the misspelling then.
            others = [other for other in self._nodes if other not in self._known]
            misspelt = nearest(key, others)
            if misspelt is not None:
                raise TestbedError(
                    f"{self.where(misspelt)}: unknown key `{self._dotted(misspelt)}`",
                    f"did you mean `{key}`?",
                )
            place = f"`{self.name}`" if self.name else "the file"
            raise TestbedError(
                f"{self.path}:{self.line}: {place} lacks the key `{key}`", f"add `{key}: ...`"
            )
        return node

    def _construct(self, node: yaml.Node) -> Any:
        try:
            return self._loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, TypeError) as error:
            raise _error(self.path, node, f"not a usable value: {error}", "quote it?") from error

    def _scalar(self, key: str, default: object, types: tuple[type, ...], wanted: str) -> Any:
        node = self._take(key, default)
        if node is None:
            return default
        value = self._construct(node)
        # bool is an int in Python; `rounds: yes` must not become 1.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise self._wrong_type(key, node, wanted)
        return value

    def _list(self, key: str, default: object, types: tuple[type, ...], wanted: str) -> Any:
        node = self._take(key, default)
        if node is None:
            return default
        if not isinstance(node, yaml.SequenceNode):
            raise self._wrong_type(key, node, "a list")
        items = []
        for index, item in enumerate(node.value):
            value = self._construct(item)
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                raise self._wrong_type(f"{key}[{index}]", item, wanted)
            items.append(value)
        return tuple(items)

    def _as_written(self, key: str) -> str:
        node = self._take(key, REQUIRED)
        if not isinstance(node, yaml.ScalarNode):
            assert node is not None
            raise self._wrong_type(key, node, "text")
        return str(node.value)

    def _wrong_type(self, key: str, node: yaml.Node | None, wanted: str) -> TestbedError:
        assert node is not None
        value = self._construct(node)
        kind = _KIND_NAMES.get(type(value), type(value).__name__)
        shown = f"{kind} ({value!r})" if isinstance(node, yaml.ScalarNode) else kind
        remedy = (
            "put it in quotes" if wanted == "text" and not isinstance(value, list | dict) else ""
        )
        return _error(
            self.path, node, f"`{self._dotted(key)}` must be {wanted}, not {shown}", remedy
        )

    def _check_bounds(
        self, key: str, value: float, minimum: float | None, maximum: float | None
    ) -> None:
        if minimum is not None and value < minimum:
            raise self.error(key, f"is {value}", f"it must be at least {minimum}")
        if maximum is not None and value > maximum:
            raise self.error(key, f"is {value}", f"it must be at most {maximum}")

    def _check_choice(self, key: str, value: str, allowed: Sequence[str]) -> None:
        if value in allowed:
            return
        near = nearest(value, allowed)
        remedy = f"did you mean `{near}`?" if near else f"one of: {', '.join(allowed)}"
        raise self.error(key, f"has the unknown value `{value}`", remedy)

    def _check_distinct(self, key: str, items: Sequence[str]) -> None:
        for index, item in enumerate(items):
            if item in items[:index]:
                raise self.error(key, f"lists `{item}` twice", "keep one of them")


def _error(path: Path, node: yaml.Node, problem: str, remedy: str) -> TestbedError:
    return TestbedError(f"{path}:{node.start_mark.line + 1}: {problem}", remedy)
