"""What a bundle (./inv bundle) brings ready-made, taken where a checkout would build it.

A bundle is an unpacked tree with the code of the testbed, `bundle.json` beside it and the folder
`prebuilt/`. A machine that runs one needs neither compiler nor network, and builds nothing. The
folder of a part has a key in its name, as artifacts have, so that what depends on it can be kept.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.root import ROOT

FACTS_NAME = "bundle.json"
FOLDER_NAME = "prebuilt"


@cache
def bundle_facts() -> dict[str, Any] | None:
    """What `bundle.json` says of the bundle that this code lies in; None in a checkout."""
    path = ROOT / FACTS_NAME
    if not path.is_file():
        return None
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TestbedError(f"{path} is damaged: {error}", "unpack the bundle again") from error
    return facts


def prebuilt(part: str) -> Path | None:
    """The folder of a part of the bundle; None in a checkout, where the part is built.

    Raises TestbedError if this is a bundle that was made without the part.
    """
    facts = bundle_facts()
    if facts is None:
        return None
    if part not in facts["parts"]:
        raise TestbedError(
            f"this bundle was made without {part}",
            "make one that has it, where network and compiler are: ./inv bundle --help",
        )
    return ROOT / FOLDER_NAME / str(facts["parts"][part])


def has_prebuilt(part: str) -> bool:
    """Whether this is a bundle that has the part."""
    facts = bundle_facts()
    return facts is not None and part in facts["parts"]
