"""The systems that are compared: presets of independent switches (ARCHITECTURE.md, section 5).

A switch reaches the stub as an environment variable, and the worker through the stub, so that one
stub and one server make up every system.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from testbed.errors import TestbedError
from testbed.protocol.wire import constant

DEFAULT_SPIN_US = constant("spin_us_default")
SPIN_US_MAX = constant("spin_us_max")
TRANSPORTS = ("shm", "tcp")
NOTIFICATIONS = ("adaptive", "always")
PLACEMENTS = ("process", "guest", "server-vm")  # in the order in which they are measured

SwitchValue = str | int | bool


@dataclass(frozen=True)
class System:
    """One system. `transport` none is the application with the vendor's library, gvirtus another
    project's forwarder, which has switches of its own.
    """

    name: str
    transport: str
    oneway: bool = True
    local: bool = True
    notifications: str = "adaptive"
    spin_us: int = DEFAULT_SPIN_US

    @property
    def is_native(self) -> bool:
        """No forwarding: no stub, no server."""
        return self.transport == "none"

    @property
    def is_gvirtus(self) -> bool:
        """Forwarded by an installation of GVirtuS: neither our stub nor our server."""
        return self.transport == "gvirtus"

    def switches(self) -> dict[str, SwitchValue]:
        """The switches by name, for manifests; empty for native and for gvirtus."""
        if self.is_native or self.is_gvirtus:
            return {}
        return {
            "transport": self.transport,
            "oneway": self.oneway,
            "local": self.local,
            "notifications": self.notifications,
            "spin_us": self.spin_us,
        }

    def environment(self, server: str, token: str = "") -> dict[str, str]:
        """What the stub reads. `server` as in ARCHITECTURE.md, `token` (hex) for tcp.

        Raises TestbedError if the server does not fit the transport.
        """
        if self.is_native:
            return {}
        if self.is_gvirtus:
            raise TestbedError(
                "gvirtus forwards CUDA, and this uses OpenCL",
                "use ./inv exec --system gvirtus -- PROGRAM, or an experiment's application form",
            )
        kind = server.partition(":")[0]
        fitting = ("tcp",) if self.transport == "tcp" else ("unix", "device")
        if kind not in fitting:
            raise TestbedError(
                f"system {self.name} uses {self.transport}, but the server is {server!r}",
                f"give one that begins with {' or '.join(f'{k}:' for k in fitting)}",
            )
        environment = {
            "WORMHOLE_SERVER": server,
            "WORMHOLE_ONEWAY": str(int(self.oneway)),
            "WORMHOLE_LOCAL": str(int(self.local)),
            "WORMHOLE_SPIN_US": str(self.spin_us),
            "WORMHOLE_NOTIFICATIONS": self.notifications,
        }
        if token:
            environment["WORMHOLE_TOKEN"] = token
        return environment


PRESETS: dict[str, System] = {
    system.name: system
    for system in (
        System("native", "none"),
        System("wormhole", "shm"),
        System("wormhole-sync", "shm", oneway=False),
        System("wormhole-notify", "shm", oneway=False, notifications="always"),
        System("tcp-sync", "tcp", oneway=False, local=False),
        System("gvirtus", "gvirtus"),
    )
}


def system(
    preset: str, overrides: Iterable[tuple[str, SwitchValue]] = (), name: str = ""
) -> System:
    """A preset with some switches changed.

    Raises TestbedError for an unknown preset, switch or value.
    """
    known = PRESETS.get(preset)
    if known is None:
        raise TestbedError(f"unknown system {preset!r}", f"known: {', '.join(PRESETS)}")
    changes = dict(overrides)
    if changes and (known.is_native or known.is_gvirtus):
        raise TestbedError(f"{preset} has no switches", "leave the overrides out")
    for switch, value in changes.items():
        _check(switch, value)
    changed = dataclasses.replace(known, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(changed, name=name or preset)


def check_placement(placement: str, chosen: System | None = None) -> None:
    """Raises TestbedError if there is no such placement, or if the system cannot run in it."""
    if placement not in PLACEMENTS:
        raise TestbedError(f"unknown placement {placement!r}", f"known: {', '.join(PLACEMENTS)}")
    if placement != "process" and chosen is not None and chosen.is_native:
        raise TestbedError(
            "native runs on the host, a guest has no accelerator of its own",
            "use --placement process, or another system",
        )
    if placement != "process" and chosen is not None and chosen.is_gvirtus:
        raise TestbedError(
            "gvirtus runs on the host: its libraries are those of this machine's installation",
            "use --placement process, or another system",
        )


def _check(switch: str, value: SwitchValue) -> None:
    choices: dict[str, tuple[SwitchValue, ...]] = {
        "transport": TRANSPORTS,
        "notifications": NOTIFICATIONS,
        "oneway": (True, False),
        "local": (True, False),
    }
    allowed = choices.get(switch)
    if switch == "spin_us":
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= SPIN_US_MAX:
            raise TestbedError(
                f"spin_us {value!r} is not possible", f"give 0 to {SPIN_US_MAX} microseconds"
            )
        return
    if allowed is None:
        names = [field.name for field in dataclasses.fields(System) if field.name != "name"]
        raise TestbedError(f"unknown switch {switch!r}", f"known: {', '.join(names)}")
    if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
        shown = ", ".join(str(choice).lower() for choice in allowed)
        raise TestbedError(f"{switch} cannot be {value!r}", f"choose from: {shown}")
