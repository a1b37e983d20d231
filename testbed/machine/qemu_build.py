"""QEMU with the wormhole device: fetch the source, patch it, build it, keep the few files needed.

The source comes from Debian's archive through a private apt state, so that nothing of the machine's
own apt changes and the archive's keyring vouches for it; `WORMHOLE_QEMU_TARBALL` names an upstream
tarball instead where there is no Debian archive.  What is built, and why, stands in
`qemu_patches/README.md`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError
from testbed.machine.artifacts import (
    Inputs,
    artifact,
    artifact_path,
    last_lines,
    log_path,
    run_logged,
)
from testbed.machine.prebuilt import has_prebuilt, prebuilt
from testbed.root import ROOT

PATCHES = ROOT / "qemu_patches"
SUITE = "trixie"  # the Debian release whose QEMU has the helper for shared memory capabilities
DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SEABIOS = Path("/usr/share/seabios/bios-256k.bin")
MESON = "meson==1.9.2"
OPTION_ROMS = ("linuxboot_dma.bin", "pvh.bin", "kvmvapic.bin")
FIRMWARE = "bios-256k.bin"

FETCH_TIMEOUT_S = 900.0
STEP_TIMEOUT_S = 600.0
BUILD_TIMEOUT_S = 5400.0
SHORT_TIMEOUT_S = 30.0
PROGRESS_INTERVAL_S = 20.0

CONFIGURE_OPTIONS = (
    "--target-list=x86_64-softmmu",
    "--without-default-features",
    "--without-default-devices",
    "--with-devices-x86_64=wormhole",
    "--disable-download",
    "--disable-install-blobs",
    "--disable-debug-info",
    "--disable-werror",
    "--extra-cflags=-Werror=implicit-function-declaration",
    "--enable-pie",
    "--enable-tcg",
    "--enable-kvm",
    "--enable-slirp",
    "--enable-attr",
    "--enable-virtfs",
    "--enable-vhost-kernel",
    "--enable-vhost-net",
    "--enable-seccomp",
)

Report = Callable[[str], None]


@dataclass(frozen=True)
class QemuBundle:
    """A built QEMU: the program, the directory for `-L`, and where it came from."""

    binary: Path
    data_dir: Path
    version: str
    source_sha256: str


@dataclass(frozen=True)
class AptSource:
    """One Debian archive: its address and the keyring (or key block) that vouches for it."""

    uri: str
    signed_by: str


@dataclass(frozen=True)
class _Source:
    """The fetched source: its files, its version and the hash of the upstream part."""

    directory: Path
    version: str
    sha256: str


def qemu_bundle(report: Report = lambda line: None) -> QemuBundle:
    """Return the patched QEMU, building it if the cache has none (minutes; see `report`).

    `report` gets one line at the start of each long step.  Raises TestbedError naming the log.
    """
    directory = prebuilt("qemu") or _built(report)
    facts = json.loads((directory / "bundle.json").read_text(encoding="utf-8"))
    return QemuBundle(
        binary=directory / "qemu-system-x86_64",
        data_dir=directory / "data",
        version=str(facts["version"]),
        source_sha256=str(facts["source_sha256"]),
    )


def _built(report: Report) -> Path:
    source = _fetched_source(report)
    inputs = _build_inputs(source)
    log = log_path("qemu", inputs)
    return artifact("qemu", inputs, lambda out: _build(source, out, log, report))


def qemu_is_built() -> bool:
    """Whether `qemu_bundle` would find everything in the cache, or in a bundle."""
    if has_prebuilt("qemu"):
        return True
    own = bool(os.environ.get("WORMHOLE_QEMU_TARBALL"))
    if not own and not artifact_path("qemu-source", _source_inputs()).is_dir():
        return False
    return artifact_path("qemu", _build_inputs(_fetched_source(lambda line: None))).is_dir()


# ---- the source ----


def base_series() -> str:
    """The QEMU release series that the patches are for, such as `10.0`."""
    return (PATCHES / "base").read_text(encoding="utf-8").strip()


def newest_matching(versions: Sequence[str], series: str) -> str | None:
    """The newest Debian version of the series (`1:10.0.13+ds-0+deb13u1` is of `10.0`)."""
    pattern = re.compile(rf"(?:\d+:)?{re.escape(series)}\.(\d+)\D")
    found = [(int(match[1]), text) for text in versions if (match := pattern.match(text))]
    return max(found)[1] if found else None


def debian_archives(etc_apt: Path, codename: str) -> list[AptSource]:
    """The archives from which this machine gets its own release, in both of apt's formats.

    Only entries for the release itself count (not its security or updates suites), because only
    those archives are sure to carry other releases as well.
    """
    found: list[AptSource] = []
    for path in sorted((etc_apt / "sources.list.d").glob("*.sources")):
        found += _parse_deb822(path.read_text(encoding="utf-8", errors="replace"), codename)
    for path in [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*.list"))]:
        if path.is_file():
            found += _parse_one_line(path.read_text(encoding="utf-8", errors="replace"), codename)
    return list(dict.fromkeys(found))


def _parse_deb822(text: str, codename: str) -> list[AptSource]:
    found = []
    for stanza in re.split(r"\n[ \t]*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t"):
                fields[name] = f"{fields.get(name, '')}\n{line}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        words = {key: fields.get(key, "").split() for key in ("suites", "components", "uris")}
        if codename in words["suites"] and "main" in words["components"]:
            signed_by = fields.get("signed-by", "") or DEBIAN_KEYRING
            found += [AptSource(uri, signed_by) for uri in words["uris"]]
    return found


def _parse_one_line(text: str, codename: str) -> list[AptSource]:
    found = []
    for line in text.splitlines():
        match = re.match(
            r"deb(?:-src)?\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<rest>.*)",
            line.strip(),
        )
        if not match or match["suite"] != codename:
            continue
        if "main" not in match["rest"].partition("#")[0].split():
            continue
        options = dict(re.findall(r"([\w-]+)=(\S+)", match["options"] or ""))
        found.append(AptSource(match["uri"], options.get("signed-by", DEBIAN_KEYRING)))
    return found


def _fetched_source(report: Report) -> _Source:
    tarball = os.environ.get("WORMHOLE_QEMU_TARBALL")
    if tarball:
        path = Path(tarball).expanduser().absolute()
        if not path.is_file():
            raise TestbedError(
                f"WORMHOLE_QEMU_TARBALL names {path}, which is not a file",
                f"give the path of qemu-{base_series()}.x.tar.xz",
            )
        return _Source(path.parent, "", _sha256(path))
    inputs = _source_inputs()
    log = log_path("qemu-source", inputs)
    directory = artifact("qemu-source", inputs, lambda out: _fetch(out, log, report))
    facts = json.loads((directory / "source.json").read_text(encoding="utf-8"))
    return _Source(directory, str(facts["version"]), str(facts["sha256"]))


def _source_inputs() -> Inputs:
    return {"suite": SUITE, "series": base_series()}


def _fetch(out: Path, log: Path, report: Report) -> None:
    """Download Debian's source package from the mirrors that the machine itself uses."""
    if shutil.which("apt-get") is None:
        raise TestbedError(
            "there is no apt-get here to fetch QEMU's source with",
            f"set WORMHOLE_QEMU_TARBALL to the path of an upstream qemu-{base_series()}.x.tar.xz",
        )
    codename = _os_release().get("VERSION_CODENAME", "")
    archives = debian_archives(Path("/etc/apt"), codename) if codename else []
    if not archives:
        raise TestbedError(
            "/etc/apt names no Debian archive to fetch QEMU's source from",
            f"name a mirror there, or set WORMHOLE_QEMU_TARBALL to a qemu-{base_series()}.x.tar.xz",
        )
    failures = []
    for archive in archives:
        report(f"fetching QEMU's source (40 MB) from {archive.uri}")
        try:
            version = _fetch_from(archive, out, log)
        except TestbedError as error:
            failures.append(f"{archive.uri}: {error.what}")
            continue
        upstream = next(out.glob("*.orig.tar.*"))
        facts = {"version": version, "sha256": _sha256(upstream), "archive": archive.uri}
        (out / "source.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        return
    raise TestbedError(
        "QEMU's source could not be fetched:\n    " + "\n    ".join(failures),
        f"check the network, or set WORMHOLE_QEMU_TARBALL to a qemu-{base_series()}.x.tar.xz",
    )


def _fetch_from(archive: AptSource, out: Path, log: Path) -> str:
    """Fetch from one archive into `out`; returns Debian's version."""
    state = out / "apt"
    shutil.rmtree(state, ignore_errors=True)
    for name in ("etc", "state/lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "etc" / "qemu.sources").write_text(
        f"Types: deb-src\nURIs: {archive.uri}\nSuites: {SUITE}\nComponents: main\n"
        f"Signed-By: {archive.signed_by}\n",
        encoding="utf-8",
    )
    options = [
        f"-o=Dir::Etc::sourceparts={state / 'etc'}",
        "-o=Dir::Etc::sourcelist=/dev/null",
        f"-o=Dir::State={state / 'state'}",
        "-o=Dir::State::status=/dev/null",
        f"-o=Dir::Cache={state / 'cache'}",
        "-o=Acquire::Languages=none",
        "-o=Acquire::Retries=3",
        "-o=Acquire::http::Timeout=60",
        "-o=APT::Sandbox::User=root",
        "-o=APT::Update::Error-Mode=any",
    ]
    run_logged(["apt-get", *options, "update"], log, FETCH_TIMEOUT_S)
    listing = _output(["apt-cache", *options, "showsrc", "--only-source", "qemu"])
    versions = re.findall(r"^Version: (\S+)$", listing, re.MULTILINE)
    version = newest_matching(versions, base_series())
    if version is None:
        raise TestbedError(f"{SUITE} has QEMU {versions or 'not at all'}, not {base_series()}.x")
    run_logged(
        ["apt-get", *options, "source", "--download-only", f"qemu={version}"],
        log,
        FETCH_TIMEOUT_S,
        cwd=out,
    )
    shutil.rmtree(state, ignore_errors=True)
    return version


# ---- the build ----


def _build_inputs(source: _Source) -> Inputs:
    system = _os_release()
    inputs: dict[str, str | bytes | Path] = {
        "source": source.sha256,
        "debian version": source.version,
        "options": "\n".join(CONFIGURE_OPTIONS),
        "meson": MESON,
        "devices": PATCHES / "devices.mak",
        "system": f"{system.get('ID')} {system.get('VERSION_ID')} {platform.machine()}",
    }
    for patch in _patches():
        inputs[f"patch {patch.name}"] = patch_changes(patch.read_text(encoding="utf-8"))
    if SEABIOS.is_file():
        inputs["firmware"] = SEABIOS
    return inputs


def patch_changes(text: str) -> str:
    """What a patch changes in the program: its diffs of files other than documentation.

    Message, author, date and documentation do not change what is built.
    """
    diffs = re.split(r"^(?=diff --git )", text, flags=re.MULTILINE)[1:]
    if not diffs:
        raise TestbedError(f"there is no diff in a patch of {PATCHES}", "restore it from git")
    return "".join(diff for diff in diffs if not diff.startswith("diff --git a/docs/"))


def _patches() -> list[Path]:
    patches = sorted(PATCHES.glob("[0-9]*.patch"))
    if not patches:
        raise TestbedError(f"there are no patches in {PATCHES}", "restore them from git")
    return patches


def _build(source: _Source, out: Path, log: Path, report: Report) -> None:
    """Build in `out/work`, move what is needed up into `out`, and remove the rest."""
    work = out / "work"
    work.mkdir()
    report("unpacking and patching QEMU")
    tree = _unpack(source, work, log)
    version = (tree / "VERSION").read_text(encoding="utf-8").strip()
    if not version.startswith(f"{base_series()}."):
        raise TestbedError(
            f"the source is QEMU {version}, but the patches are for {base_series()}.x",
            f"point WORMHOLE_QEMU_TARBALL at a qemu-{base_series()}.x.tar.xz",
        )
    for patch in _patches():
        run_logged(
            ["patch", "-p1", "--batch", "--forward", "-i", patch], log, STEP_TIMEOUT_S, cwd=tree
        )
    shutil.copy(PATCHES / "devices.mak", tree / "configs/devices/x86_64-softmmu/wormhole.mak")

    build = work / "build"
    build.mkdir()
    python = _build_python(work, log)
    report("configuring QEMU (about half a minute)")
    run_logged(
        ["nice", tree / "configure", f"--python={python}", *CONFIGURE_OPTIONS],
        log,
        STEP_TIMEOUT_S,
        cwd=build,
    )
    cores = len(os.sched_getaffinity(0))
    report(f"building QEMU {version} on {cores} cores")
    with _progress(log, report):
        run_logged(
            ["nice", "ninja", f"-j{cores}", "qemu-system-x86_64"], log, BUILD_TIMEOUT_S, cwd=build
        )
    _collect(tree, build, out, log)
    _check(out)
    facts = {
        "version": source.version or version,
        "source_sha256": source.sha256,
        "patches": {patch.name: _sha256(patch) for patch in _patches()},
        "options": list(CONFIGURE_OPTIONS),
    }
    (out / "bundle.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(work)


def _unpack(source: _Source, work: Path, log: Path) -> Path:
    tree = work / "source"
    description = next(source.directory.glob("*.dsc"), None) if source.version else None
    if description is not None:
        # apt verified the files against the signed archive when it fetched them.
        argv = ["dpkg-source", "--no-check", "-x", str(description), str(tree)]
        run_logged(argv, log, STEP_TIMEOUT_S)
    else:
        tarball = Path(os.environ["WORMHOLE_QEMU_TARBALL"]).expanduser().absolute()
        tree.mkdir()
        argv = ["tar", "-xf", str(tarball), "--strip-components=1", "-C", str(tree)]
        run_logged(argv, log, STEP_TIMEOUT_S)
    return tree


def _build_python(work: Path, log: Path) -> Path:
    """A Python of the build's own with a meson that is new enough (Debian 12 has 1.0)."""
    venv = work / "venv"
    run_logged([sys.executable, "-m", "venv", venv], log, STEP_TIMEOUT_S)
    python = venv / "bin" / "python3"
    run_logged([python, "-m", "pip", "install", "--quiet", MESON], log, STEP_TIMEOUT_S)
    return python


@contextmanager
def _progress(log: Path, report: Report) -> Iterator[None]:
    """Report from time to time how far ninja is and when it will be done."""
    done = threading.Event()
    start_s = time.monotonic()

    def watch() -> None:
        while not done.wait(PROGRESS_INTERVAL_S):
            steps = ninja_steps(last_lines(log))
            if steps is not None:
                left_s = (time.monotonic() - start_s) * (steps[1] - steps[0]) / steps[0]
                report(f"building QEMU: step {steps[0]} of {steps[1]}, about {left_s:.0f} s left")

    watcher = threading.Thread(target=watch, name="qemu build progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join(timeout=SHORT_TIMEOUT_S)


def ninja_steps(lines: Sequence[str]) -> tuple[int, int] | None:
    """Steps done and steps in all, from the last of ninja's lines that says so."""
    for line in reversed(lines):
        match = re.match(r"\[([1-9]\d*)/(\d+)\]", line)
        if match:
            return int(match[1]), int(match[2])
    return None


def _collect(tree: Path, build: Path, out: Path, log: Path) -> None:
    """Strip the program and put it beside its firmware."""
    data = out / "data"
    data.mkdir()
    binary = out / "qemu-system-x86_64"
    run_logged(["strip", "-o", binary, build / "qemu-system-x86_64"], log, STEP_TIMEOUT_S)

    # configure leaves the option ROMs out without a 32-bit libgcc, which they do not need.
    roms = build / "wormhole-roms"
    roms.mkdir()
    (roms / "config.mak").write_text(
        f"TOPSRC_DIR={tree}\nCC=gcc\nOBJCOPY=objcopy\nPYTHON={sys.executable}\n", encoding="utf-8"
    )
    makefile = tree / "pc-bios" / "optionrom" / "Makefile"
    run_logged(["make", "-f", makefile, *OPTION_ROMS], log, STEP_TIMEOUT_S, cwd=roms)
    for name in OPTION_ROMS:
        shutil.copy(roms / name, data / name)

    own = tree / "pc-bios" / FIRMWARE
    firmware = own if own.is_file() else SEABIOS
    if not firmware.is_file():
        raise TestbedError(
            f"there is no firmware: neither in QEMU's source nor at {SEABIOS}",
            "apt-get install seabios",
        )
    shutil.copy(firmware, data / FIRMWARE)


def _check(out: Path) -> None:
    """The program must run and know the device before it is called built."""
    listing = _output([str(out / "qemu-system-x86_64"), "-device", "help"])
    if "virtio-wormhole-pci" not in listing:
        raise TestbedError(
            "the QEMU that was built has no virtio-wormhole-pci",
            f"see whether {PATCHES / 'devices.mak'} names CONFIG_VIRTIO_WORMHOLE",
        )


# ---- small helpers ----


def _output(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=SHORT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or error
        raise TestbedError(f"`{Path(argv[0]).name}` failed: {detail}") from error
    return done.stdout


def _os_release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
