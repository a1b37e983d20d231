"""The suites: other people's programs that use OpenCL, by name."""

from __future__ import annotations

from dataclasses import replace

from testbed.errors import TestbedError
from testbed.experiment.suites import parsers
from testbed.experiment.suites.suite import FEWER, SKIPS, Source, Step, Suite, Truth

PYTEST = ("pytest==8.4.2", "pytest-timeout==2.4.0")
PYOPENCL = "pyopencl==2025.1"
NUMPY = "numpy==2.4.6"
TEST_LIMIT_S = 300
# Only where PoCL sees enough free memory at that moment does it work at all, then for minutes.
NOT_BY_CHANCE = "not zeros_large_array"

# Of each level of BLAS some; all would take an hour.
CLBLAST_ROUTINES = (
    *("xaxpy", "xswap", "xdot", "xnrm2", "xamax", "xgemv", "xhemv", "xsyr2", "xgemm"),
    *("xomatcopy", "xaxpybatched", "xim2col"),
)

NO_SVM = "the device declares no shared virtual memory: guest and host have two address spaces"
NOT_FORWARDED = "extensions whose functions are not forwarded are not declared"


def find_suites(only: str) -> tuple[Suite, ...]:
    """The suites of a comma-separated list of names, `suite` or `suite/program`; all for none.

    Raises TestbedError for a name that there is not.
    """
    known = {suite.name: suite for suite in SUITES}
    chosen: dict[str, list[Step]] = {}
    for name in filter(None, (word.strip() for word in only.split(","))):
        suite, _, program = name.partition("/")
        if suite not in known:
            raise TestbedError(f"there is no suite {suite!r}", f"known: {', '.join(known)}")
        steps = [step for step in known[suite].steps if program in ("", step.name)]
        if not steps:
            names = ", ".join(step.name for step in known[suite].steps)
            raise TestbedError(f"suite {suite} has no program {program!r}", f"known: {names}")
        chosen.setdefault(suite, []).extend(steps)
    return (
        tuple(replace(known[name], steps=tuple(steps)) for name, steps in chosen.items()) or SUITES
    )


def _pytest(
    name: str,
    *paths: str,
    timeout_s: float = 1200.0,
    extra: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> Step:
    options = ("-q", "-p", "no:cacheprovider", "-W", "ignore", "--timeout", str(TEST_LIMIT_S))
    return Step(
        name,
        ("{python}", "-m", "pytest", *options, *extra, "--junitxml={work}/junit.xml", *paths),
        parsers.junit,
        timeout_s=timeout_s,
        result="junit.xml",
        in_source=".",
        # Bytecode beside the tests would change what is in the cache.
        environment={"PYTHONDONTWRITEBYTECODE": "1", **(environment or {})},
    )


def _clblast(routine: str) -> Step:
    return Step(routine, (f"clblast_test_{routine}",), parsers.clblast, timeout_s=900.0)


def _clfft(name: str, *words: str) -> Step:
    return Step(name, ("clFFT-client", *words), parsers.expecting(r"\*{5}PASS\*{5}"))


def _piglit(name: str, tests: str) -> Step:
    run = ("piglit", "run", "cl", "{work}/out", "--no-concurrency", "--include-tests", tests)
    return Step(
        name,
        (*run, "--log-level", "dummy", "--backend", "json", "--timeout", str(TEST_LIMIT_S)),
        parsers.piglit,
        timeout_s=3600.0,
        result="out/results.json",
        environment={"PIGLIT_COMPRESSION": "none"},
    )


def _hashcat(name: str, *words: str, facts: str) -> Step:
    # --force: it warns of PoCL; -D 1: CPU devices too.
    return Step(
        name,
        ("hashcat", "--force", "-D", "1", "--potfile-disable", *words),
        parsers.lines(facts),
        timeout_s=900.0,
        files={
            "md5": "a435fd9374b88f6b811b26acdff1c74f\n",  # of "wormhole"
            "words": "hello\nwormhole\nsecret\n",
        },
    )


SUITES = (
    Suite(
        "clinfo",
        "every property of platform and device",
        (Step("raw", ("clinfo", "--raw"), parsers.clinfo),),
        debian=("clinfo",),
        truths=(
            Truth(r"raw: .*_SVM_CAPABILITIES", FEWER, NO_SVM),
            Truth(r"raw: .*EXTENSIONS(_WITH_VERSION)?", FEWER, NOT_FORWARDED),
            Truth(r"raw: .*COMMAND_BUFFER.*", FEWER, NOT_FORWARDED),
            Truth(
                r"raw: .*CL_DEVICE_EXECUTION_CAPABILITIES",
                FEWER,
                "native kernels are functions of the application, which the device cannot call",
            ),
        ),
        guest=("raw",),
        short=("raw",),
    ),
    Suite(
        "clpeak",
        "bandwidths, arithmetic and latency; a figure that is there passes",
        (
            Step("latency", ("clpeak", "--kernel-latency"), parsers.clpeak),
            Step("all", ("clpeak",), parsers.clpeak, timeout_s=600.0),
        ),
        debian=("clpeak",),
        guest=("latency",),
        short=("latency",),
    ),
    Suite(
        "clfft",
        "clFFT's client, which checks its own results",
        (
            _clfft("1024", "-x", "1024"),
            _clfft("1000 inverse", "-x", "1000", "--inv"),
            _clfft("243 x 125", "-x", "243", "-y", "125"),
            _clfft("64 x 32 x 16", "-x", "64", "-y", "32", "-z", "16"),
            _clfft("65536 batch 4", "-x", "65536", "-b", "4"),
            _clfft("4096 double out of place", "-x", "4096", "--double", "-o"),
            _clfft("2048 planar", "-x", "2048", "--inLayout", "2", "--outLayout", "2"),
            _clfft("512 real", "-x", "512", "--inLayout", "5", "--outLayout", "3", "-o"),
        ),
        debian=("clfft-client",),
        guest=("1024",),
        short=("1024",),
    ),
    Suite(
        "clblast",
        "CLBlast's test clients, which compare with a BLAS library",
        tuple(_clblast(routine) for routine in CLBLAST_ROUTINES),
        debian=("clblast-tests",),
        guest=("xaxpy",),
        short=("xaxpy",),
    ),
    Suite(
        "hashcat",
        "password hashing: its self-test, a hash found, a short benchmark",
        (
            _hashcat("md5", *("-m", "0", "--quiet", "md5", "words"), facts=":wormhole$"),
            _hashcat("bench md5", *("-b", "-m", "0", "--runtime", "3"), facts=r"^\* Hash-Mode"),
        ),
        debian=("hashcat",),
    ),
    Suite(
        "pyopencl",
        "the test suite of pyopencl",
        (
            _pytest("wrapper", "test_wrapper.py", "test_enqueue_copy.py"),
            _pytest("array", "test_array.py", timeout_s=1800.0, extra=("-k", NOT_BY_CHANCE)),
            _pytest("algorithm", "test_algorithm.py", timeout_s=1800.0),
            _pytest("math", "test_clmath.py", "test_clrandom.py", "test_arrays_in_structs.py"),
        ),
        python=(PYOPENCL, NUMPY, "mako==1.4.3", *PYTEST),
        source=Source("pyopencl", "2025.1", "test"),
        truths=(Truth(r"(wrapper|array): .*svm.*", SKIPS, NO_SVM),),
        guest=("wrapper",),
        short=("wrapper",),
    ),
    Suite(
        "reikna",
        "the test suite of reikna, a library of algorithms over arrays",
        (
            _pytest("cluda", "test_cluda"),
            _pytest("core", "test_core", "test_transformations.py", timeout_s=1800.0),
            _pytest("reduce", "test_algorithms/test_reduce.py", timeout_s=1800.0),
            _pytest("fft", "test_fft/test_fftshift.py", "test_linalg/test_norm.py"),
        ),
        python=("reikna==0.9.0", PYOPENCL, NUMPY, "mako==1.4.3", *PYTEST),
        source=Source("reikna", "0.9.0", "test"),
    ),
    Suite(
        "tinygrad",
        "those of tinygrad's tests that its source package can run, on OpenCL",
        (
            _pytest(
                "core",
                *(f"test_{name}.py" for name in ("tiny", "assign", "setitem", "zero_copy")),
                *(f"test_{name}.py" for name in ("jit_footguns", "softmax_fusion", "to_numpy")),
                *(f"test_{name}.py" for name in ("tensor_variable", "kernel_cache", "pickle")),
                environment={"DEV": "CL"},
            ),
        ),
        python=("tinygrad==0.12.0", NUMPY, "hypothesis==6.131.0", *PYTEST),
        source=Source("tinygrad", "0.12.0", "test"),
    ),
    Suite(
        "piglit",
        "piglit's OpenCL tests: API errors, built-in functions",
        (
            _piglit("api", "^(api|custom)"),
            # 663 programs, in four parts that each end on a slow machine.
            _piglit("build", "^program@(?!execute@)"),
            _piglit("execute", "^program@execute@(?!builtin|store|vload|vstore)"),
            _piglit("access", "^program@execute@(store|vload|vstore)"),
            _piglit("builtin", "^program@execute@builtin"),
        ),
        debian=("piglit",),
    ),
)
