"""The functions of an API as programs name them, and how each is answered: made from the spec."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from testbed.protocol.spec import CUDA_NAMES, Function, exports, load_api


class Verdict(StrEnum):
    """What becomes of a call."""

    FORWARDED = "forwarded"
    LOCAL = "answered by the client"
    RULE = "answered by rule"
    NOT = "not forwarded"


@dataclass(frozen=True)
class Answer:
    """How one function is answered; `how` is the spec's mode or the rule."""

    name: str
    verdict: Verdict
    how: str


@dataclass(frozen=True)
class Surface:
    """An API: its functions, what its names look like, and who else provides them.

    `libraries` begin the names of files that implement the API or load those that do; `provided`
    are functions that such a loader answers itself. A name with one of the `extensions` at its end
    is looked up at run time, and not found unless the spec has it. `refused` are functions that are
    there and fail.
    """

    name: str
    functions: dict[str, Function]
    pattern: re.Pattern[str]
    libraries: tuple[str, ...]
    provided: frozenset[str]
    extensions: tuple[str, ...]
    refused: frozenset[str] = frozenset()

    def answer(self, name: str) -> Answer:
        """What a call of this name gets."""
        function = self.functions.get(name)
        if function is None and name in self.provided:
            return Answer(name, Verdict.LOCAL, "answered by the API's own loader")
        if function is None and name.endswith(self.extensions):
            return Answer(name, Verdict.RULE, "an extension that the device does not declare")
        if function is None:
            known = name in self.refused
            return Answer(name, Verdict.NOT, MODES["unsupported"] if known else "unknown")
        return Answer(name, verdict_of(function), how(function))


def verdict_of(function: Function) -> Verdict:
    """What becomes of a call of a function of the spec."""
    if function.mode == "unsupported":
        return Verdict.NOT
    if function.mode == "answered":
        return Verdict.RULE
    return Verdict.LOCAL if function.mode == "local" else Verdict.FORWARDED


def how(function: Function) -> str:
    """The mode in words; for a rule, the answer and its reason."""
    if function.mode == "answered":
        return f"{function.answers}: {function.reason}"
    return MODES[function.mode]


MODES = {
    "sync": "waits for the reply",
    "oneway": "never waits",
    "shape": "waits until the same shape has succeeded once",
    "info": "waits for the reply; an answer that cannot change is kept",
    "retain": "counted in the client",
    "release": "counted in the client; the last one goes one way",
    "local": "answered by the client",
    "unsupported": "not forwarded yet",
}


def opencl_surface() -> Surface:
    """OpenCL, from its spec."""
    api = load_api("opencl")
    return Surface(
        name="opencl",
        functions={function.name: function for function in api.functions},
        pattern=re.compile(r"cl[A-Z][A-Za-z0-9_]*"),
        libraries=(
            "libOpenCL.so",
            "libpocl",
            "libwormhole_opencl",
            "libMesaOpenCL",
            "libRusticlOpenCL",
        ),
        provided=frozenset(
            {"clGetICDLoaderInfoOCLICD", "clIcdGetPlatformIDsKHR", "clGetExtensionFunctionAddress"}
        ),
        extensions=(
            *("KHR", "KHX", "EXT", "OCLICD", "POCL", "APPLE", "ARM", "QCOM", "IMG", "AMD"),
            *("INTEL", "NV", "HUAWEI"),
        ),
    )


#: What the names of CUDA's libraries begin with, and files that have or load them.
CUDA_PATTERNS = {
    "cudart": (r"(?:__)?cuda[A-Z][A-Za-z0-9_]*", ("libcudart",)),
    "cublas": (r"cublas(?!Lt)[A-Z][A-Za-z0-9_]*", ("libcublas.so",)),
    "cublaslt": (r"cublasLt[A-Z][A-Za-z0-9_]*", ("libcublasLt",)),
    "cudnn": (r"cudnn[A-Z][A-Za-z0-9_]*", ("libcudnn",)),
    "driver": (r"cu[A-Z][A-Za-z0-9_]*", ("libcuda.so",)),
    "nvml": (r"nvml[A-Z][A-Za-z0-9_]*", ("libnvidia-ml",)),
}


def cuda_surface(name: str) -> Surface:
    """One of CUDA's libraries, from its spec and from what the real one exports."""
    api = load_api(name)
    pattern, libraries = CUDA_PATTERNS[name]
    own = {f.name: f for f in api.functions if not f.name.startswith("whc")}
    return Surface(
        name=name,
        functions=own,
        pattern=re.compile(pattern),
        libraries=libraries,
        provided=frozenset(),
        extensions=(),
        refused=frozenset(exports(name)) - own.keys(),
    )


def surfaces() -> tuple[Surface, ...]:
    """Every API that has a spec of functions for applications."""
    return (opencl_surface(), *map(cuda_surface, CUDA_NAMES))
