"""The guest as a bundle carries it: all that `guest_image` gives, with a smaller root.

What no guest of an experiment uses is left out of its file system: Perl, character sets, and what
only installing packages needs.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from testbed.errors import TestbedError
from testbed.machine.artifacts import artifact, log_path, run_logged
from testbed.machine.image import guest_image, make_file_system

LEFT_OUT = (
    *("usr/share/perl", "usr/share/perl5", "usr/lib/x86_64-linux-gnu/perl", "usr/bin/perl*"),
    *("usr/lib/x86_64-linux-gnu/perl-base", "usr/lib/x86_64-linux-gnu/gconv"),
    *("usr/lib/python3.*/pydoc_data", "usr/lib/python3.*/ensurepip", "usr/lib/python3.*/lib2to3"),
    *("var/lib/dpkg/info", "var/lib/apt", "var/cache/apt", "var/cache/debconf", "usr/lib/apt"),
    *("usr/share/bash-completion", "usr/share/zoneinfo"),
)
READ_LIMIT_S = 120.0


def guest_part() -> Path:
    """A folder with root.ext4, vmlinuz, initrd, wormhole.ko and their facts; from the cache."""
    image = guest_image()
    inputs: dict[str, str | bytes | Path] = {
        "root": image.root.parent.name,
        "initrd": image.initrd.parent.name,
        "driver": image.driver.parent.name,
        "left out": " ".join(LEFT_OUT),
    }
    log = log_path("guest-portable", inputs)

    def build(directory: Path) -> None:
        root = directory / "root"
        root.mkdir()
        _read_file_system(image.root, root, log)
        for pattern in LEFT_OUT:
            for path in root.glob(pattern):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        make_file_system(root, directory / "root.ext4", log)
        shutil.rmtree(root)
        shutil.copy(image.kernel, directory / "vmlinuz")
        shutil.copy(image.initrd, directory / "initrd")
        shutil.copy(image.driver, directory / "wormhole.ko")
        for name in ("kernel_release", "packages", "suite"):
            shutil.copy(image.root.parent / name, directory / name)

    return artifact("guest-portable", inputs, build)


def _read_file_system(image: Path, target: Path, log: Path) -> None:
    """Take all files out of an ext4 file, owners kept; no mount is needed."""
    if os.geteuid() != 0:
        raise TestbedError("making the bundle's guest needs root (file owners)", "use --no-guest")
    env = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    run_logged(["debugfs", "-R", f"rdump / {target}", image], log, READ_LIMIT_S, env=env)
    if not (target / "usr" / "sbin" / "sshd").is_file():
        raise TestbedError(f"{image} could not be read", f"see {log}")
