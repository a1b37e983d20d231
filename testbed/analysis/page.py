"""The report of a run as one HTML file that needs nothing else: no network, no other file.

Figures are inline SVG, their data inline CSV; only the logs of failed trials and the files beside
the page are links, relative to the run's directory.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from testbed.analysis import cuda_table, paper_table, statistics
from testbed.analysis.breakdown import FILE as BREAKDOWN_FILE
from testbed.analysis.breakdown import OVERHEAD_FILE, Entry
from testbed.analysis.false_alarms import false_alarms
from testbed.analysis.false_alarms import table as alarms_table
from testbed.analysis.figures import Drawn
from testbed.analysis.findings import findings
from testbed.analysis.published import Beside, has_counterpart, load_published
from testbed.analysis.samples import Run, Sample
from testbed.analysis.tables import MISSING, Comparison, notes_of, tables_of

TEMPLATE = Path(__file__).with_name("page.html")
LOG_FILES_LIMIT = 20
LOG_SUFFIXES = (".log", ".txt", ".jsonl")


def page(
    run: Run,
    comparisons: Sequence[Comparison],
    published: Sequence[Beside],
    entries: Sequence[Entry],
    figures: Sequence[Drawn],
    table_files: Sequence[Path],
) -> str:
    """The report as text of an HTML file that lies in the run's directory."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    publication = load_published()
    samples = run.trials
    alarms = false_alarms(run)
    cuda = cuda_table.cuda_rows(run)
    text: str = template.render(
        name=run.experiment.get("name", run.path.name),
        doc=run.experiment.get("doc", ""),
        started=run.manifest.get("started_utc", ""),
        facts=_facts(run),
        workloads=_workloads(run),
        findings=findings(run, comparisons, entries),
        publication=publication,
        beside=paper_table.table_of(publication, published) if published else [],
        notes=[note for _, note in paper_table.notes_of(publication, published)],
        tested=has_counterpart(publication, run),
        figures=[_figure(run.path, figure) for figure in figures],
        table_files=[str(file.relative_to(run.path)) for file in table_files],
        breakdown_files=[
            name for name in (BREAKDOWN_FILE, OVERHEAD_FILE) if (run.path / name).is_file()
        ],
        groups=[
            {"title": c.group.title, "tables": tables_of(c), "notes": notes_of(c)}
            for c in comparisons
        ],
        cuda=cuda_table.tables_of(cuda) if cuda else [],
        alarms=alarms_table(alarms) if alarms else [],
        trials=len(samples),
        failed=[_failed(run.path, sample) for sample in samples if sample.status != "ok"],
        noisy=[sample for sample in samples if sample.noisy],
        noise_rule=run.manifest.get("noise_rule", {}).get("text", "none was recorded"),
        method=(statistics.__doc__ or "").strip(),
        manifest=json.dumps(run.manifest, indent=2, ensure_ascii=False),
    )
    return text


def _facts(run: Run) -> list[tuple[str, str]]:
    """What a reader wants to know first, from the manifest."""
    manifest = run.manifest
    host = manifest.get("host", {})
    commit = manifest.get("commit", {})
    device = manifest.get("opencl", {})
    accelerator = manifest.get("accelerator", {})
    return [
        ("run", run.path.name),
        ("state", str(manifest.get("state", "unknown"))),
        ("measured", f"{manifest.get('started_utc', '?')} to {manifest.get('ended_utc', '?')}"),
        (
            "commit",
            f"{commit.get('id', '?')}{' with local changes' if commit.get('dirty') else ''}"
            + "".join(
                f"; after {later['after_trials']} trials {later['id']}"
                for later in manifest.get("continued_by", [])
            ),
        ),
        (
            "host",
            f"{host.get('cpu_model', 'unknown processor')}, {host.get('cores', '?')} cores,"
            f" {host.get('memory_mib', '?')} MiB, {host.get('system', '?')},"
            f" kernel {host.get('kernel', '?')}",
        ),
        ("device", f"{device.get('device') or 'unknown'}, driver {device.get('driver') or '?'}"),
        *_gpu(manifest.get("gpu")),
        (
            "guests",
            f"{str(accelerator.get('kind', 'none')).upper()} ({accelerator.get('reason', '?')})",
        ),
        ("baseline", ", ".join((run.baseline, *run.rivals))),
    ]


def _gpu(gpu: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """NVIDIA's GPUs, where there are any: OpenCL's device may be another."""
    return [("GPU", f"{', '.join(gpu['devices'])}, driver {gpu['driver']}")] if gpu else []


def _workloads(run: Run) -> list[list[str]]:
    """Every workload of the run: what it does, on which data."""
    rows = []
    for label in dict.fromkeys(group.workload for group in run.groups):
        facts = run.workload(label)
        data = facts.get("data")
        recording = facts.get("recording")
        rows.append(
            [
                label,
                _known(facts.get("mode")),
                _known(data.get("text") if isinstance(data, Mapping) else None),
                _known(facts.get("batch")),
                _known(facts.get("steps")),
                _known(facts.get("warmup_steps")),
                _known(recording.get("calls") if isinstance(recording, Mapping) else None),
            ]
        )
    return rows


def _known(value: object) -> str:
    return MISSING if value is None else str(value)


def _figure(run: Path, figure: Drawn) -> dict[str, Any]:
    data = next(file for file in figure.files if file.suffix == ".csv")
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "image": _data_url("image/svg+xml", figure.svg.read_bytes()),
        "csv": _data_url("text/csv", data.read_bytes()),
        "files": [str(file.relative_to(run)) for file in figure.files],
        "columns": list(figure.records[0]),
        "rows": [[_cell(value) for value in record.values()] for record in figure.records],
    }


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else _known(value)


def _data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _failed(run: Path, sample: Sample) -> dict[str, Any]:
    """A trial that was not ok, with those of its and its guest's logs that the run still has."""
    logs = [
        path
        for folder in sample.logs
        for path in sorted((run / folder).rglob("*"))
        if path.is_file() and path.suffix in LOG_SUFFIXES
    ]
    return {
        "id": sample.id,
        "status": sample.status,
        "detail": sample.detail,
        "logs": [str(path.relative_to(run)) for path in logs[:LOG_FILES_LIMIT]],
    }
