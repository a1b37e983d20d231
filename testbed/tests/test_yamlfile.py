"""Settings files: typed getters, and errors that name file, line and the key that was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import yamlfile
from testbed.errors import TestbedError

FILE = Path("workloads/example.yaml")

TEXT = """\
name: example
rounds: 5
rate: 1
on: off
systems: [native, wormhole]
data:
  file: digits
  scale: 2
steps:
  - wormhole
  - {system: wormhole, spin_us: 5}
environment: {DEV: CL, N: 010}
"""


def example(text: str = TEXT) -> yamlfile.Section:
    return yamlfile.parse(text, FILE)


def test_getters_give_typed_values() -> None:
    section = example()
    assert section.text("name") == "example"
    assert section.integer("rounds", minimum=1) == 5
    assert section.number("rate") == 1.0
    assert section.boolean("on") is False
    assert section.texts("systems") == ("native", "wormhole")
    assert section.text_map("environment") == {"DEV": "CL", "N": "010"}
    data = section.section("data")
    assert (data.text("file"), data.integer("scale")) == ("digits", 2)
    first, second = section.texts_or_sections("steps")
    assert first == "wormhole"
    assert isinstance(second, yamlfile.Section)
    assert second.integer("spin_us") == 5
    assert section.text("absent", None) is None
    section.finish()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nround: 2\n", "example.yaml:2: unknown key `round` - did you mean `rounds`?"),
        ("name: a\nzzz: 2\n", "example.yaml:2: unknown key `zzz` - valid keys here: name, rounds"),
        ("rounds: 2\n", "example.yaml:1: the file lacks the key `name`"),
        ("name: 7\n", "example.yaml:1: `name` must be text, not a whole number (7)"),
        ("name: a\nrounds: yes\n", "example.yaml:2: `rounds` must be a whole number"),
        ("name: a\nrounds: 0\n", "example.yaml:2: `rounds` is 0 - it must be at least 1"),
        ("name: a\nname: b\n", "example.yaml:2: `name` stands twice, first in line 1"),
        ("name: [a\n", "not valid YAML"),
        ("- a\n", "example.yaml:1: the top level must be"),
        ("", "is empty"),
    ],
)
def test_a_mistake_names_its_place(text: str, expected: str) -> None:
    with pytest.raises(TestbedError) as caught:
        section = example(text)
        section.text("name")
        section.integer("rounds", 1, minimum=1)
        section.finish()
    assert expected in str(caught.value)


def test_nested_unknown_key_is_named_with_its_section() -> None:
    data = example().section("data")
    data.text("file")
    with pytest.raises(TestbedError, match=r"example.yaml:8: unknown key `data.scale`"):
        data.finish()


def test_unknown_choice_names_the_nearest() -> None:
    with pytest.raises(
        TestbedError, match=r":5: `systems` has the unknown value .* `wormhole-sync`"
    ):
        example("a: 1\nb: 1\nc: 1\nd: 1\nsystems: [wormhole-synch]\n").texts(
            "systems", allowed=["native", "wormhole-sync"]
        )


def test_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"cannot read .*no\.yaml: No such file"):
        yamlfile.load(tmp_path / "no.yaml")
