"""Specs that say things in short, written out."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.errors import TestbedError
from testbed.protocol.expand import expanded
from testbed.protocol.spec import load_api

SPEC: dict[str, Any] = {
    "name": "blas",
    "arguments": {
        "n": {"type": "int"},
        "x": {"type": "void *"},
        "alpha": {"type": "const {T} *", "scalar": "sizeof(*alpha)"},
        "alpha.real": {"name": "alpha", "type": "const {R} *", "scalar": "sizeof(*alpha)"},
    },
    "forms": {"S": {"T": "float", "R": "float"}, "C": {"T": "complex", "R": "float"}},
    "functions": [
        {"name": "?scal", "forms": {"S": 8, "C": 10}, "wide": True, "args": ["n", "alpha", "x"]},
        {"name": "Csscal", "opcode": 12, "args": [{"name": "n", "type": "int"}, "x"]},
    ],
}


def test_a_family_becomes_its_functions() -> None:
    functions = expanded(SPEC)["functions"]
    names = [(entry["name"], entry["opcode"]) for entry in functions]
    assert names == [("Sscal", 8), ("Sscal_64", 9), ("Cscal", 10), ("Cscal_64", 11), ("Csscal", 12)]
    assert [argument["type"] for argument in functions[0]["args"]] == [
        *("int", "const float *", "void *")
    ]
    assert functions[3]["args"][0] == {"name": "n", "type": "int64_t"}
    assert functions[3]["args"][1]["type"] == "const complex *"


def test_what_stands_written_out_stays() -> None:
    assert expanded({"functions": [{"name": "f", "opcode": 1, "args": []}]}) == {
        "functions": [{"name": "f", "opcode": 1, "args": []}]
    }


def test_an_argument_may_have_another_name_than_its_description() -> None:
    functions = [{"name": "f", "opcode": 1, "args": ["alpha.real"]}]
    first = expanded({**SPEC, "functions": functions})["functions"][0]
    assert first["args"][0]["name"] == "alpha"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"name": "f", "opcode": 1, "args": ["alfa"]}, "'alfa'"),
        ({"name": "?f", "forms": {"Q": 1}, "args": []}, "'Q'"),
    ],
)
def test_what_is_described_nowhere_is_an_error(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(TestbedError, match=said):
        expanded({**SPEC, "functions": [entry]})


def test_cublas_has_each_function_in_both_widths() -> None:
    names = {function.name for function in load_api("cublas").functions}
    for name in ("cublasSgemm_v2", "cublasZherk_v2", "cublasGemmEx", "cublasHgemm"):
        assert {name, f"{name}_64"} <= names
