"""The published figures and ours as one table: text, Markdown, LaTeX, CSV and JSON.

Columns: what, as published, where ours was measured, ours in each placement that the run has, and
what measures it again.  In what ours is another thing than what was published stands in notes.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from testbed.analysis.published import PLACEMENTS, Beside, Publication
from testbed.analysis.tables import MISSING, latex_table, markdown_table, text_table

TITLE = "The published figures beside ours"


def placements_of(rows: Sequence[Beside]) -> tuple[str, ...]:
    """The placements that any row has, in their usual order."""
    return tuple(name for name in PLACEMENTS if any(name in row.ours for row in rows))


def table_of(publication: Publication, rows: Sequence[Beside]) -> list[list[str]]:
    """As rows of text with headings first; the last but one column numbers the notes."""
    placements = placements_of(rows)
    numbers = {key: str(i) for i, (key, _) in enumerate(notes_of(publication, rows), start=1)}
    table = [["id", "what", "published", *placements, "measured on", "systems", "note", "command"]]
    for row in rows:
        cells = [row.ours[name].text if name in row.ours else MISSING for name in placements]
        table.append(
            [
                row.figure.id,
                row.figure.what,
                row.published,
                *cells,
                row.where or "not measured in this run",
                row.systems,
                numbers.get(row.figure.note, ""),
                row.command or MISSING,
            ]
        )
    return table


def notes_of(publication: Publication, rows: Sequence[Beside]) -> list[tuple[str, str]]:
    """Key and text of the notes that the rows need, in the order in which they do."""
    keys = dict.fromkeys(row.figure.note for row in rows if row.figure.note)
    return [(key, " ".join(publication.notes[key].split())) for key in keys]


def text(publication: Publication, rows: Sequence[Beside]) -> str:
    """For the terminal: a block for each result with the command that measures it again."""
    table = table_of(publication, rows)
    head, lines = table[0], table[1:]
    shown = [head.index(name) for name in head if name not in ("id", "systems", "command")]
    what = head.index("what"), head.index("measured on"), head.index("published")
    order = [*what, *(column for column in shown if column not in what)]
    blocks = [TITLE, "=" * len(TITLE)]
    aligned = text_table([[row[column] for column in order] for row in table], left=2)
    blocks.append(aligned[0])
    for result in dict.fromkeys(row[0] for row in lines):
        of_result = [(row, aligned[i]) for i, row in enumerate(lines, start=1) if row[0] == result]
        commands = dict.fromkeys(
            one for row, _ in of_result for one in row[-1].split(", ") if one != MISSING
        )
        blocks.append(f"-- {result}: {', '.join(commands) or 'not measured in this run'}")
        blocks += [line for _, line in of_result]
    for number, (_, note) in enumerate(notes_of(publication, rows), start=1):
        blocks.append(f"{number}: {note}")
    blocks.append("brackets: 95 % interval over rounds; the whole table again: ./inv report RUN")
    return "\n".join(blocks)


def markdown(publication: Publication, rows: Sequence[Beside]) -> str:
    """As Markdown with its notes."""
    notes = [f"{i}. {note}" for i, (_, note) in enumerate(notes_of(publication, rows), start=1)]
    return "\n".join([f"### {TITLE}", "", markdown_table(table_of(publication, rows)), "", *notes])


def latex(publication: Publication, rows: Sequence[Beside]) -> str:
    """As LaTeX for the package booktabs; the notes as comments, to be put where they fit."""
    notes = [f"% {i}: {note}" for i, (_, note) in enumerate(notes_of(publication, rows), start=1)]
    table = latex_table(table_of(publication, rows), TITLE, "tab:published", left=2)
    return "\n".join(["% needs \\usepackage{booktabs}", *notes, table])


def records(publication: Publication, rows: Sequence[Beside]) -> list[dict[str, Any]]:
    """A line for each figure, placement and workload, with every number."""
    found = []
    for row in rows:
        note = publication.notes.get(row.figure.note, "")
        common = {
            "id": row.figure.id,
            "what": row.figure.what,
            "published": row.published,
            "source": row.source,
            "measured_on": row.where,
            "systems": row.systems,
        }
        last = {"command": row.command, "note": " ".join(note.split())}
        for placement, ours in row.ours.items():
            found.append(
                {
                    **common,
                    "placement": placement,
                    "best": ours.on,
                    "ours": ours.value.estimate,
                    "ours_low": ours.value.low,
                    "ours_high": ours.value.high,
                    "trials": ours.value.count,
                    "part": ours.part,
                    **last,
                }
            )
        if not row.ours:
            nothing = dict.fromkeys(
                ("placement", "best", "ours", "ours_low", "ours_high", "trials", "part")
            )
            found.append({**common, **nothing, **last})
    return found


def csv_text(publication: Publication, rows: Sequence[Beside]) -> str:
    """`records` as CSV."""
    lines = records(publication, rows)
    sink = io.StringIO()
    writer = csv.DictWriter(sink, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return sink.getvalue()


def json_text(publication: Publication, rows: Sequence[Beside]) -> str:
    """`records` as JSON."""
    return json.dumps(records(publication, rows), indent=2, ensure_ascii=False) + "\n"
