"""The guest: root file system, kernel, initramfs, kernel headers and the driver built for them.

Each is an artifact of its own, so that a change of one leaves the others alone:

- `guest-root`: mmdebstrap's file system as an ext4 file, the kernel, the modules the initramfs
  needs and the kernel's headers (on the host only, never in the guest).  Made without mounts, loop
  devices or KVM, so that a plain container can do it.
- `guest-initrd`: a static init (guest_agent/init/init.c) and the modules.
- `guest-driver`: the module for this very kernel, compiled on the host against those headers.

What differs between VMs (keys, network) is a second, tiny cpio archive behind the first, made for
each start: the kernel unpacks both, and the shared files stay untouched.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError
from testbed.machine.artifacts import artifact, artifact_path, log_path, run_logged
from testbed.machine.prebuilt import has_prebuilt, prebuilt
from testbed.protocol.generate import generated_files
from testbed.root import ROOT

RECIPE_VERSION = "1"  # raise when the way the root is made changes without its inputs changing
DRIVER_RECIPE_VERSION = "1"
INIT_SOURCE = ROOT / "guest_agent" / "init" / "init.c"
DRIVER_SOURCE = ROOT / "guest_agent" / "driver"
APT_CONFIGURATION = Path("/etc/apt")

PACKAGES = (
    "clinfo",
    "kmod",
    "ocl-icd-libopencl1",
    "openssh-server",
    "procps",
    "python3",
)
# What a guest has besides if the accelerator is in it: PoCL and what the supervisor imports.
SERVER_PACKAGES = (
    "pocl-opencl-icd",
    "python3-jsonschema",
    "python3-yaml",
)
KERNEL_PACKAGE = "linux-image-cloud-amd64"
HEADERS_PACKAGE = "linux-headers-cloud-amd64"
# The last one reads the share of host files (host_share.py), on a disk of its own.
BOOT_MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "erofs")
USER_NAME = "wormhole"
USER_ID = 1000
FREE_BYTES = 2 << 30  # sparse: costs nothing until a guest writes, and then only in its overlay
INODE_SPARE = 20_000

ROOT_TIMEOUT_S = 1500.0
COMMAND_TIMEOUT_S = 300.0

Entry = tuple[str, int, bytes]  # name, mode with type bits, content


@dataclass(frozen=True)
class GuestImage:
    """All that is needed to start a guest; the files are shared between VMs and never written."""

    root: Path
    kernel: Path
    initrd: Path
    kernel_release: str
    packages_sha256: str
    suite: str
    headers: Path
    built_driver: Path | None = None

    @property
    def driver(self) -> Path:
        """The kernel module for this image's kernel; built on first use, see `build_driver`."""
        if self.built_driver is not None:
            return self.built_driver
        return build_driver(self.headers, DRIVER_SOURCE)


def guest_image(more_packages: Sequence[str] = ()) -> GuestImage:
    """Return the guest image, building what the cache lacks; `more_packages` make it another one.

    Raises TestbedError if a tool is missing, the archive cannot be reached or the build fails.
    """
    ready = prebuilt("guest")
    if ready is not None:
        if more_packages:
            raise TestbedError(
                "a bundle has the image of a client guest alone",
                "use placement process or guest; server-vm runs from a checkout",
            )
        return _image(ready, ready, ready / "wormhole.ko")
    root = _guest_root((*PACKAGES, *more_packages))
    return _image(root, _guest_initrd(root), None)


def _image(root: Path, initrd: Path, driver: Path | None) -> GuestImage:
    return GuestImage(
        root=root / "root.ext4",
        kernel=root / "vmlinuz",
        initrd=initrd / "initrd",
        kernel_release=(root / "kernel_release").read_text().strip(),
        packages_sha256=hashlib.sha256((root / "packages").read_bytes()).hexdigest(),
        suite=(root / "suite").read_text().strip(),
        headers=root / "headers",
        built_driver=driver,
    )


def guest_image_is_built() -> bool:
    """Whether `guest_image` would find the root file system in the cache, or in a bundle."""
    if has_prebuilt("guest"):
        return True
    return artifact_path("guest-root", _root_inputs(_sources(), PACKAGES)).is_dir()


def build_driver(headers: Path, source: Path) -> Path:
    """Compile the kernel module in `source` against unpacked kernel headers; return the .ko file.

    `headers` is the `headers` directory of a guest root: usr/ and lib/ of the header packages and a
    file `release`.  The source directory needs a Kbuild file or Makefile that names one module.
    The source may include the generated wh_wire.h.
    """
    if not any((source / name).is_file() for name in ("Kbuild", "Makefile")):
        raise TestbedError(
            f"there is no guest driver to build in {source}: no Kbuild, no Makefile",
            "run from a complete checkout",
        )
    release = (headers / "release").read_text().strip()
    # Straight from the specs: a fresh checkout has no build/generated, an old one may be stale.
    wire_header = generated_files()["include/wh_wire.h"]
    inputs: dict[str, str | bytes | Path] = {
        "recipe": DRIVER_RECIPE_VERSION,
        "release": release,
        "headers": headers.parent.name,
        "compiler": _compiler_version(),
    }
    for file in sorted(source.iterdir()):
        if file.suffix in (".c", ".h") or file.name in ("Kbuild", "Makefile"):
            inputs[f"source/{file.name}"] = file
    inputs["wh_wire.h"] = wire_header
    log = log_path("guest-driver", inputs)

    def build(directory: Path) -> None:
        work = directory / "source"
        work.mkdir()
        for name, value in inputs.items():
            if name.startswith("source/") and isinstance(value, Path):
                shutil.copy(value, work / value.name)
        tree = headers / "usr" / "src" / f"linux-headers-{release}"
        argv: list[str | Path] = ["make", "-C", tree, f"M={work}", "CC=gcc", "modules"]
        # Type information for tracing tools: nobody reads it, and making it needs pahole.
        argv.append("CONFIG_DEBUG_INFO_BTF_MODULES=")
        (work / "wh_wire.h").write_text(wire_header, encoding="utf-8")
        run_logged(argv, log, COMMAND_TIMEOUT_S)
        modules = list(work.glob("*.ko"))
        if len(modules) != 1:
            raise TestbedError(
                f"building {source} made {len(modules)} modules where one is expected",
                f"see {log}",
            )
        shutil.copy(modules[0], directory / "wormhole.ko")
        shutil.rmtree(work)

    return artifact("guest-driver", inputs, build) / "wormhole.ko"


def seed_archive(files: Mapping[str, bytes], private: Iterable[str] = ()) -> bytes:
    """A cpio archive with files for /run/wormhole, to be put behind the image's initrd.

    Files named in `private` are readable by root alone.
    """
    hidden = set(private)
    entries: list[Entry] = [("seed", 0o040755, b"")]
    for name, content in files.items():
        entries.append((f"seed/{name}", 0o100600 if name in hidden else 0o100644, content))
    return cpio_archive(entries)


def cpio_archive(entries: Iterable[Entry]) -> bytes:
    """Pack entries in cpio's `newc` format, the one the kernel reads, owned by root."""
    archive = bytearray()
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], start=1):
        encoded = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
        archive += b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
        archive += b"\0" * (-len(archive) % 4)
        archive += content
        archive += b"\0" * (-len(archive) % 4)
    return bytes(archive + b"\0" * (-len(archive) % 512))


def module_order(wanted: Iterable[str], modules: Mapping[str, bytes]) -> list[str]:
    """Order modules so that each comes after those it needs.

    `modules` maps names (with underscores) to file contents; a wanted module that is not among them
    is taken to be built into the kernel.
    """
    order: list[str] = []

    def add(name: str) -> None:
        if name in order or name not in modules:
            return
        for needed in _module_needs(modules[name]):
            add(needed)
        order.append(name)

    for name in wanted:
        add(name)
    return order


def machine_sources(configuration: Path, suite: str) -> str:
    """The machine's own archive of `suite` as one-line sources: base, updates and security.

    Reads deb822 (.sources) and one-line (.list) files; other archives (of other vendors, backports)
    stay out of the guest.  Returns "" if the machine names none.
    """
    lines: list[str] = []
    files = [configuration / "sources.list", *sorted(configuration.glob("sources.list.d/*"))]
    for file in files:
        if file.suffix == ".sources" and file.is_file():
            lines += _deb822_lines(file.read_text(errors="replace"), suite)
        elif file.suffix == ".list" and file.is_file():
            lines += _one_line_lines(file.read_text(errors="replace"), suite)
    return "".join(f"{line}\n" for line in dict.fromkeys(lines))


def _deb822_lines(text: str, suite: str) -> list[str]:
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        key = ""
        for line in paragraph.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace():
                fields[key] = f"{fields.get(key, '')} {line.strip()}"
            elif ":" in line:
                key, value = line.split(":", 1)
                key = key.strip().lower()
                fields[key] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "") == "no":
            continue
        key_file = fields.get("signed-by", "")
        option = f"[signed-by={key_file}] " if key_file.startswith("/") else ""
        if "main" in fields.get("components", "").split():
            lines += [
                f"deb {option}{uri} {name} main"
                for uri in fields.get("uris", "").split()
                for name in fields.get("suites", "").split()
                if _is_own_suite(name, suite)
            ]
    return lines


def _one_line_lines(text: str, suite: str) -> list[str]:
    lines: list[str] = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(\[[^]]*\]\s+)?(\S+)\s+(\S+)\s+(.*)", line)
        if match and _is_own_suite(match[3], suite) and "main" in match[4].split("#")[0].split():
            lines.append(f"deb {match[1] or ''}{match[2]} {match[3]} main")
    return lines


def _is_own_suite(name: str, suite: str) -> bool:
    return name in (suite, f"{suite}-updates", f"{suite}-security", f"{suite}/updates")


@dataclass(frozen=True)
class _Sources:
    suite: str
    text: str


def _sources() -> _Sources:
    """The suite of this machine and where its archive is."""
    release: dict[str, str] = {}
    try:
        for line in Path("/etc/os-release").read_text().splitlines():
            key, _, value = line.partition("=")
            release[key] = value.strip('"')
    except OSError as error:
        raise TestbedError(f"cannot read /etc/os-release: {error.strerror}") from error
    suite = release.get("VERSION_CODENAME", "")
    if release.get("ID") != "debian" or not suite:
        raise TestbedError(
            f"the guest image is made from Debian's archive, and this machine is"
            f" {release.get('PRETTY_NAME', 'unknown')}",
            "use a Debian 12 or 13 machine, or stay with --placement process",
        )
    text = machine_sources(APT_CONFIGURATION, suite)
    if not text:
        raise TestbedError(
            f"{APT_CONFIGURATION} names no Debian archive with the suite {suite}",
            f"add a line `deb MIRROR {suite} main` with a Debian mirror to"
            f" {APT_CONFIGURATION}/sources.list",
        )
    return _Sources(suite, text)


def _root_inputs(sources: _Sources, packages: Sequence[str]) -> dict[str, str | bytes | Path]:
    return {
        "recipe": RECIPE_VERSION,
        "suite": sources.suite,
        "packages": " ".join((*packages, KERNEL_PACKAGE, *BOOT_MODULES)),
        "user": f"{USER_NAME} {USER_ID}",
        "free": str(FREE_BYTES),
    }


def _guest_root(packages: Sequence[str]) -> Path:
    sources = _sources()
    inputs = _root_inputs(sources, packages)
    log = log_path("guest-root", inputs)

    def build(directory: Path) -> None:
        _require_tools()
        root = directory / "root"
        debs = directory / "debs"
        debs.mkdir()
        _bootstrap(sources, packages, root, debs, log)
        _finish_root(root)
        (directory / "packages").write_text(_package_list(root))
        (directory / "suite").write_text(sources.suite + "\n")
        make_file_system(root, directory / "root.ext4", log)
        shutil.rmtree(root)
        _unpack_kernel(debs, directory, log)
        shutil.rmtree(debs)

    return artifact("guest-root", inputs, build)


def _require_tools() -> None:
    needed = {
        "mmdebstrap": "mmdebstrap",
        "mke2fs": "e2fsprogs",
        "dpkg-deb": "dpkg",
        "gcc": "gcc libc6-dev",
        "make": "make",
    }
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [package for tool, package in needed.items() if not shutil.which(tool, path=path)]
    if missing:
        raise TestbedError(
            f"making the guest image needs {', '.join(missing)}",
            f"apt-get install {' '.join(missing)}",
        )
    if os.geteuid() != 0:
        raise TestbedError(
            "making the guest image needs root (file owners, chroot)",
            "run it once with sudo -E, or stay with --placement process",
        )


# mmdebstrap runs this while its package lists are still there, so that kernel and headers are of
# the same archive state as the guest: resolve the two meta packages and fetch what they stand for.
_FETCH_KERNEL = """\
set -eu
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
cd "$1"
depends() {
    apt-cache depends --important "$1" | sed -n 's/^ *|*Depends: *//p'
}
image=$(depends "$2" | grep '^linux-image-' | head -n 1)
headers=$(depends "$3" | grep '^linux-headers-' | head -n 1)
more=$(depends "$headers" | grep -E '^linux-(headers|kbuild)-')
apt-get -o APT::Sandbox::User=root download "$image" "$headers" $more
"""


def _bootstrap(
    sources: _Sources, packages: Sequence[str], root: Path, debs: Path, log: Path
) -> None:
    """Run mmdebstrap into `root` and fetch the kernel's packages into `debs`."""
    list_file = debs.parent / "sources.list"
    list_file.write_text(sources.text)
    script = debs.parent / "fetch_kernel"
    script.write_text(_FETCH_KERNEL)
    argv: list[str | Path] = [
        "mmdebstrap",
        "--mode=root",
        "--variant=essential",
        # A container without CAP_SYS_ADMIN cannot mount; no package here needs /proc to install.
        "--skip=check/canmount",
        "--skip=chroot/mount",
        "--skip=output/dev",
        f"--include={','.join(packages)}",
        *(
            f"--dpkgopt=path-exclude=/usr/share/{name}/*"
            for name in ("man", "doc", "locale", "info")
        ),
        *(f"--aptopt={setting}" for setting in _apt_settings()),
        f'--customize-hook=sh "{script}" "{debs}" {KERNEL_PACKAGE} {HEADERS_PACKAGE}',
        sources.suite,
        root,
        list_file,
    ]
    run_logged(argv, log, ROOT_TIMEOUT_S)
    script.unlink()
    list_file.unlink()


def _apt_settings() -> list[str]:
    """The machine's own way to its archive: proxies and what it says about old mirrors."""
    text = _output(["apt-config", "dump"])
    pattern = r"^(Acquire::(?:https?::Proxy\S*|Check-Valid-Until|Check-Date|Retries)) (\".*\");$"
    return [f"{match[1]} {match[2]}" for match in re.finditer(pattern, text, re.MULTILINE)]


def _finish_root(root: Path) -> None:
    """Add the unprivileged user and the few files that packages do not bring."""
    # `*` is no password but, unlike `!`, no locked account either, which sshd without PAM refuses.
    shadow = root / "etc" / "shadow"
    text = re.sub(r"^root:[^:]*:", "root:*:", shadow.read_text(), flags=re.MULTILINE)
    shadow.write_text(text + f"{USER_NAME}:*:19000:0:99999:7:::\n")
    with (root / "etc" / "passwd").open("a") as passwd:
        passwd.write(f"{USER_NAME}:x:{USER_ID}:{USER_ID}::/home/{USER_NAME}:/bin/bash\n")
    with (root / "etc" / "group").open("a") as group:
        group.write(f"{USER_NAME}:x:{USER_ID}:\n")
    home = root / "home" / USER_NAME
    home.mkdir(parents=True)
    os.chown(home, USER_ID, USER_ID)
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost wormhole\n::1 localhost\n")
    (root / "etc" / "fstab").write_text("")
    for directory in ("proc", "sys", "dev", "run", "tmp", "opt/wormhole/lib", "etc/OpenCL/vendors"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    # Keys made at installation would be the same in every guest; each VM brings its own.
    for key in (root / "etc" / "ssh").glob("ssh_host_*"):
        key.unlink()


def _package_list(root: Path) -> str:
    shown = "--showformat=${Package} ${Version} ${Architecture}\\n"
    return _output(["dpkg-query", f"--admindir={root}/var/lib/dpkg", "--show", shown])


def make_file_system(root: Path, target: Path, log: Path) -> None:
    """Fill an ext4 file from a directory; sparse, no journal (nothing outlives its VM)."""
    used_bytes = 0
    inodes = 0
    for path in root.rglob("*"):
        inodes += 1
        if path.is_file() and not path.is_symlink():
            used_bytes += -(-path.lstat().st_size // 4096) * 4096
    size_kib = (used_bytes * 5 // 4 + FREE_BYTES) // 1024
    path_with_sbin = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    run_logged(
        [
            *("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0"),
            *("-N", str(inodes + INODE_SPARE), "-L", "wormhole", "-d", root),
            *(target, f"{size_kib}k"),
        ],
        log,
        COMMAND_TIMEOUT_S,
        env={**os.environ, "PATH": path_with_sbin},
    )


def _unpack_kernel(debs: Path, directory: Path, log: Path) -> None:
    """Take the kernel, the boot modules and the headers out of their packages."""
    headers = directory / "headers"
    image = directory / "image"
    for deb in sorted(debs.glob("*.deb")):
        target = image if deb.name.startswith("linux-image-") else headers
        run_logged(["dpkg-deb", "--extract", deb, target], log, COMMAND_TIMEOUT_S)
    kernels = list((image / "boot").glob("vmlinuz-*"))
    if len(kernels) != 1:
        raise TestbedError(f"the kernel package has {len(kernels)} kernels", f"see {log}")
    release = kernels[0].name.removeprefix("vmlinuz-")
    shutil.copy(kernels[0], directory / "vmlinuz")
    (directory / "kernel_release").write_text(release + "\n")
    (headers / "release").write_text(release + "\n")

    modules = _read_modules(image)
    order = module_order(BOOT_MODULES, modules)
    (directory / "modules").mkdir()
    for name in order:
        (directory / "modules" / f"{name}.ko").write_bytes(modules[name])
    (directory / "modules" / "order").write_text("".join(f"{name}.ko\n" for name in order))
    shutil.rmtree(image)
    _relocate_headers(headers, release)


def _read_modules(image: Path) -> dict[str, bytes]:
    """All modules of a kernel package by name; trixie's are compressed with xz."""
    modules: dict[str, bytes] = {}
    for path in image.rglob("*.ko*"):
        name = path.name.split(".")[0].replace("-", "_")
        content = path.read_bytes()
        modules[name] = lzma.decompress(content) if path.suffix == ".xz" else content
    return modules


def _module_needs(module: bytes) -> list[str]:
    """The names after `depends=` in a module's .modinfo section."""
    match = re.search(rb"\0depends=([^\0]*)\0", module)
    if match is None or not match[1]:
        return []
    return [name.replace("-", "_") for name in match[1].decode("ascii").split(",")]


def _relocate_headers(headers: Path, release: str) -> None:
    """Make Debian's headers work where they lie: they name each other by absolute paths."""
    tree = headers / "usr" / "src" / f"linux-headers-{release}"
    for name in ("Makefile", ".kernelvariables"):
        file = tree / name
        if file.is_file():
            text = file.read_text()
            # $(dir ...) of the makefile itself, so that the artifact's directory can be renamed
            here = "$(dir $(realpath $(lastword $(MAKEFILE_LIST))))../"
            file.write_text(re.sub(r"/usr/src/(?=linux-)", here.replace("\\", ""), text))


def _guest_initrd(root: Path) -> Path:
    inputs: dict[str, str | bytes | Path] = {
        "init": INIT_SOURCE,
        "modules": root / "modules",
        "compiler": _compiler_version(),
    }
    log = log_path("guest-initrd", inputs)

    def build(directory: Path) -> None:
        init = directory / "init"
        flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-s"]
        run_logged(["gcc", *flags, "-o", init, INIT_SOURCE], log, COMMAND_TIMEOUT_S)
        entries: list[Entry] = [
            ("dev", 0o040755, b""),
            ("root", 0o040755, b""),
            ("init", 0o100755, init.read_bytes()),
            ("modules", 0o040755, b""),
        ]
        for file in sorted((root / "modules").iterdir()):
            entries.append((f"modules/{file.name}", 0o100644, file.read_bytes()))
        (directory / "initrd").write_bytes(cpio_archive(entries))
        init.unlink()

    return artifact("guest-initrd", inputs, build)


def _compiler_version() -> str:
    return _output(["gcc", "--version"]).splitlines()[0]


def _output(argv: list[str]) -> str:
    """Standard output of a short command."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=True, timeout=60, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise TestbedError(
            f"{argv[0]} is not installed", "run ./inv doctor to see what is missing"
        ) from error
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise TestbedError(f"`{' '.join(argv)}` failed: {error}") from error
    return done.stdout
