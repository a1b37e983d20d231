"""The sleep protocol is checked against every interleaving, and the model is kept beside the C."""

from __future__ import annotations

import pytest

from testbed import model
from testbed.model import CONTROLS, WHOLE, changed, check_all, function_text

SOURCE = """\
/* first(a) is not { it } */
static int first(int a)
{
    return second(a); /* of all */
}

int second(int a,
           int b)
{
    if (a) {
        return b;
    }
    return 0;
}
"""


def test_the_model_is_the_one_of_this_code() -> None:
    assert not changed(), (
        "testbed/protocol/model/sleep.pml was written for other versions of these functions: "
        "bring it up to date where it must be, run ./inv model, then ./inv model --renew"
    )


def test_a_changed_function_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "host_server/worker/ring.c"
    monkeypatch.setattr(model, "modelled", lambda: {name: {"free_role": "0" * 16}})
    assert changed() == [f"{name}: free_role"]


def test_a_function_is_found_without_comments_and_layout() -> None:
    assert function_text(SOURCE, "first") == "static int first(int a) { return second(a); }"
    expected = "int second(int a, int b) { if (a) { return b; } return 0; }"
    assert function_text(SOURCE, "second") == expected
    with pytest.raises(KeyError):
        function_text(SOURCE, "third")


@pytest.mark.native
def test_no_wait_lasts_for_ever_and_each_step_is_needed() -> None:
    verdicts = list(check_all((*WHOLE, *CONTROLS)))
    assert [v.case for v in verdicts if not v.right] == []
    assert min(v.states for v in verdicts if not v.stuck) > 10_000
