"""The fuzzer for half a minute, and every session that ever failed."""

from __future__ import annotations

import pytest

from testbed.experiment.fuzz import Seed, fuzz_once, read_seeds
from testbed.protocol.emit_fuzz import CUDA_SHAPES, SHAPES
from testbed.protocol.spec import CUDA_NAMES, load_api

pytestmark = pytest.mark.native
MESSAGES = {"null": 60000, "opencl": 4000, "cuda": 20000}


@pytest.mark.parametrize(
    "backend", ["null", pytest.param("opencl", marks=pytest.mark.opencl), "cuda"]
)
def test_hostile_sessions_end_in_order(backend: str) -> None:
    count = MESSAGES[backend]
    result = fuzz_once(backend, ["--messages", str(count), "--seed", "1"], count)
    assert result["findings"] == 0, result["report"][-4000:]
    assert result["messages"] >= count
    assert result["neighbour_answers"] == result["sessions"]
    assert result["refused"] > 0
    executed = [name for name, counts in result["opcodes"].items() if counts[0] > 0]
    assert len(executed) == len(result["opcodes"])


@pytest.mark.parametrize("seed", read_seeds(), ids=lambda s: f"{s.backend}-{s.seed}-{s.session}")
def test_what_failed_once(seed: Seed) -> None:
    arguments = ["--seed", str(seed.seed), "--session", str(seed.session)]
    result = fuzz_once(seed.backend, arguments, 0)
    assert result["findings"] == 0, result["report"][-4000:]


def test_shapes_name_functions_that_exist() -> None:
    known = {function.name for api in ("core", "opencl") for function in load_api(api).functions}
    assert set(SHAPES) <= known
    known = {function.name for api in CUDA_NAMES for function in load_api(api).functions}
    assert set(CUDA_SHAPES) <= known
