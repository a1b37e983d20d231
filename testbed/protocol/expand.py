"""Writes out what a spec says in short: named arguments, families of functions, 64-bit forms.

A numerical library has the same function for several element types and for two widths of integers.
A spec describes it once:

    arguments:                            # what an argument of that name is
      n: {type: int}
      x: {type: "const void *"}
    forms:                                # what {T} and {R} are in the form S
      S: {T: float, R: float}
    functions:
      - name: "cublas?scal_v2"
        forms: {S: 0x42c, D: 0x42e}       # cublasSscal_v2 has opcode 0x42c ...
        wide: true                        # ... and cublasSscal_v2_64 the next, with int64_t for int
        args: [n, {name: alpha, type: "const {T} *"}, x]
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from testbed.errors import TestbedError

WIDE_SUFFIX = "_64"
WIDE_TYPES = {"int": "int64_t", "int *": "int64_t *", "const int *": "const int64_t *"}


def expanded(data: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with every function and argument written out.

    TestbedError for an argument or a form that is named only, and nowhere described.

    What belongs to the short form alone (`arguments`, `forms`) is gone afterwards.
    """
    rest = {key: value for key, value in data.items() if key not in ("arguments", "forms")}
    known = data.get("arguments", {})
    forms = data.get("forms", {})
    functions: list[dict[str, Any]] = []
    for entry in data["functions"]:
        args = [_named(argument, known) for argument in entry.get("args", [])]
        functions.extend(_family({**entry, "args": args}, forms))
    return {**rest, "functions": functions}


def _named(argument: str | Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(argument, str):
        if argument not in known:
            near = difflib.get_close_matches(argument, known, 3)
            raise TestbedError(
                f"an argument is named {argument!r}, which `arguments` does not describe",
                f"describe it there, or write one of {', '.join(near) or 'those that it has'}",
            )
        return {"name": argument, **known[argument]}
    return dict(argument)


def _family(entry: dict[str, Any], forms: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The functions that one entry stands for, in the order of its forms."""
    opcodes = entry.pop("forms", None)
    for form in opcodes or ():
        if form not in forms:
            raise TestbedError(
                f"{entry['name']} has the form {form!r}, which `forms` does not describe",
                f"one of {', '.join(forms)}",
            )
    wide = entry.pop("wide", False)
    if opcodes is None:
        singles = [entry]
    else:
        singles = [
            _replaced(
                {**entry, "name": entry["name"].replace("?", form), "opcode": opcode}, forms[form]
            )
            for form, opcode in opcodes.items()
        ]
    return [
        each for single in singles for each in ((single, _widened(single)) if wide else (single,))
    ]


def _replaced(value: Any, words: Mapping[str, str]) -> Any:
    """The same with {T} and the like replaced in every text."""
    if isinstance(value, str):
        for word, text in words.items():
            value = value.replace("{" + word + "}", text)
        return value
    if isinstance(value, Mapping):
        return {key: _replaced(inner, words) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replaced(inner, words) for inner in value]
    return value


def _widened(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The form whose sizes and strides are 64-bit integers."""
    args = [
        {**a, "type": WIDE_TYPES.get(a.get("type", ""), a.get("type", ""))} for a in entry["args"]
    ]
    return {
        **entry,
        "name": entry["name"] + WIDE_SUFFIX,
        "opcode": entry["opcode"] + 1,
        "args": args,
    }
