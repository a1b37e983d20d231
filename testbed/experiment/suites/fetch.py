"""What a suite is made of: Debian packages that must be there, an environment of Python packages.

Nothing of others is kept in the project: source packages are downloaded from the Python index when
a suite first runs, and kept in the cache.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError
from testbed.experiment.suites.suite import Source, Suite
from testbed.machine.artifacts import artifact, log_path, run_logged

INSTALL_LIMIT_S = 600.0
QUERY_LIMIT_S = 30.0
RECIPE_VERSION = "1"


@dataclass(frozen=True)
class Kit:
    """A suite's environment on this host: its interpreter, packages and source package.

    `versions` says what was installed, by package.
    """

    python: Path
    packages: Path | None
    source: Path | None
    versions: dict[str, str]


def fetch(suite: Suite) -> Kit:
    """Make a suite's environment, from the cache if it is there.

    Raises TestbedError if a Debian package is missing or the index cannot be reached.
    """
    versions = _debian_versions(suite.debian)
    missing = [name for name in suite.debian if name not in versions]
    if missing:
        raise TestbedError(
            f"suite {suite.name} needs {', '.join(missing)}",
            f"apt-get install --no-install-recommends {' '.join(missing)}",
        )
    python, packages = Path(sys.executable), None
    if suite.python:
        home = _environment(suite.python)
        python = home / "bin" / "python"
        packages = next(home.glob("lib/python3*/site-packages"))
        versions |= _python_versions(python)
    source = None
    if suite.source is not None:
        source = _unpacked(suite.source)
        versions[f"{suite.source.package} (tests)"] = suite.source.version
    return Kit(python, packages, source, versions)


def _debian_versions(names: Sequence[str]) -> dict[str, str]:
    if not names:
        return {}
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Status}\n", *names],
        capture_output=True,
        text=True,
        timeout=QUERY_LIMIT_S,
        check=False,
    )
    words = [line.split() for line in done.stdout.splitlines()]
    return {word[0]: word[1] for word in words if word[-1] == "installed"}


def _python_versions(python: Path) -> dict[str, str]:
    done = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "list", "--format", "freeze"],
        capture_output=True,
        text=True,
        timeout=QUERY_LIMIT_S,
        check=False,
    )
    pairs = [line.partition("==") for line in done.stdout.splitlines() if "==" in line]
    return {name: version for name, _, version in pairs}


def _environment(requirements: Sequence[str]) -> Path:
    """A virtual environment with these packages; it works wherever it is moved to."""
    inputs: dict[str, str | bytes | Path] = {
        "recipe": RECIPE_VERSION,
        "requirements": "\n".join(requirements),
        "python": f"{sys.version} {Path(sys.executable).resolve()}",
    }

    def build(directory: Path) -> None:
        log = log_path("suite-python", inputs)
        run_logged([sys.executable, "-m", "venv", str(directory)], log, INSTALL_LIMIT_S)
        pip = [str(directory / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        run_logged([*pip, "install", "--quiet", *requirements], log, INSTALL_LIMIT_S)

    return artifact("suite-python", inputs, build)


def _unpacked(source: Source) -> Path:
    """The tests of a source package, without the package itself: the installed one is tested."""
    inputs: dict[str, str | bytes | Path] = {
        "recipe": RECIPE_VERSION,
        "source": f"{source.package} {source.version} {source.folder}",
    }

    def build(directory: Path) -> None:
        log = log_path("suite-source", inputs)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        wanted = ["--no-deps", "--no-binary", source.package, f"{source.package}=={source.version}"]
        run_logged([*pip, *wanted, "-d", str(directory)], log, INSTALL_LIMIT_S)
        [archive] = directory.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            top = f"{source.package}-{source.version}/{source.folder}/"
            members = [member for member in tar.getmembers() if _is_plain(member, top)]
            if not members:
                raise TestbedError(
                    f"the source package {archive.name} has no {source.folder}/",
                    "mend the suite's description",
                )
            tar.extractall(directory, members)
        (directory / f"{source.package}-{source.version}").rename(directory / "source")
        archive.unlink()

    return artifact("suite-source", inputs, build) / "source" / source.folder


def _is_plain(member: tarfile.TarInfo, top: str) -> bool:
    """A file or folder under `top`: nothing that could be written or point elsewhere."""
    inside = member.name.startswith(top) and ".." not in member.name.split("/")
    return inside and (member.isfile() or member.isdir())
