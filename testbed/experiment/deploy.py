"""Copies a prepared workload into a guest.

The bundle travels as one compressed archive that is made once and kept in the cache.  It holds the
compiled form of the packages too: a guest that emulates its processor would spend longer compiling
them than training.
"""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath

from testbed.experiment.prepare import Bundle
from testbed.machine.artifacts import artifact
from testbed.machine.ssh import Ssh, root_owned

DEPLOY_TIMEOUT_S = 120.0
COMPRESSION_LEVEL = 3
GUEST_DIRECTORY = PurePosixPath("/opt/wormhole/workloads")


def deploy(bundle: Bundle, ssh: Ssh) -> PurePosixPath:
    """Copy a bundle into the guest that `ssh` reaches as root; returns its folder there.

    A bundle that is there already is not copied again.  Every user of the guest may read it, none
    may change it.  Raises TestbedError.
    """
    target = GUEST_DIRECTORY / f"{bundle.workload.name}-{bundle.key}"
    stamp = f"{target}.complete"
    if ssh.run(["test", "-e", stamp], timeout_s=DEPLOY_TIMEOUT_S).status == 0:
        return target
    ssh.run(["mkdir", "-p", str(target)], timeout_s=DEPLOY_TIMEOUT_S, check=True)
    ssh.run(
        ["tar", "-x", "-z", "--no-same-owner", "-C", str(target), "-f", "-"],
        stdin=archive(bundle).read_bytes(),
        timeout_s=DEPLOY_TIMEOUT_S,
        check=True,
    )
    ssh.run(["touch", stamp], timeout_s=DEPLOY_TIMEOUT_S, check=True)
    return target


def archive(bundle: Bundle) -> Path:
    """The bundle as a compressed tar file with names relative to its folder."""

    def build(directory: Path) -> None:
        with tarfile.open(
            directory / "bundle.tar.gz", "w:gz", compresslevel=COMPRESSION_LEVEL
        ) as tar:
            for path in sorted(bundle.directory.iterdir()):
                tar.add(path, arcname=path.name, filter=root_owned)

    inputs: dict[str, str | bytes | Path] = {"bundle": bundle.key, "maker": Path(__file__)}
    return artifact(f"archive-{bundle.workload.name}", inputs, build) / "bundle.tar.gz"
