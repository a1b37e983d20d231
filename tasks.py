"""The tasks of the testbed: each parses its arguments and calls one function."""

from __future__ import annotations

from invoke.context import Context
from invoke.tasks import task

from testbed.guard import guarded


@task
@guarded
def generate(_: Context) -> None:
    """Generate C code from the specs into build/generated."""
    from testbed.protocol.generate import main

    main([])
