"""What a run found, in a sentence each, worded from verdict and effect size.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.analysis.breakdown import Entry, by_part, extra_share, select
from testbed.analysis.false_alarms import false_alarms, sentences
from testbed.analysis.samples import Run
from testbed.analysis.statistics import TRIALS_NEEDED, Interval, verdict
from testbed.analysis.tables import Comparison, Row, significant


@dataclass(frozen=True)
class Findings:
    """The sentences: on the system that the run is about, and on all others."""

    main: tuple[str, ...]
    further: tuple[str, ...]


def findings(run: Run, comparisons: Sequence[Comparison], entries: Sequence[Entry]) -> Findings:
    """All findings.  The last rung of a ladder is what is compared, else wormhole, else all are."""
    main, further = [_trials_sentence(run)], []
    for comparison in comparisons:
        contender = _contender(run, comparison)
        for row in comparison.rows:
            if row.system == comparison.baseline:
                continue
            found = _row_sentences(run, comparison, row)
            if contender and row.system != contender:
                further += found
            else:
                main += found
        main += _ladder_sentences(run, comparison)
    main += _breakdown_sentences(entries)
    main += sentences(false_alarms(run))
    return Findings(tuple(main), tuple(further))


def _contender(run: Run, comparison: Comparison) -> str:
    """The system that a group is about; empty if it is about all of them."""
    if comparison.ladder:
        return comparison.ladder[-1].after
    names = [name for name in (*run.ladder[-1:], "wormhole") if name in comparison.group.systems]
    return names[0] if names and names[0] != comparison.baseline else ""


def speed_sentence(comparison: Comparison, row: Row, minimum_effect: float) -> str:
    """One system against the baseline."""
    name, baseline = row.system, comparison.baseline
    where = comparison.group.title
    if row.speed is None:
        why = "speeds are not measured in this run" if row.status == "ok" else row.status
        return f"{where}: {name} has no speed ({why})."
    ratio = row.ratio
    if ratio is None:
        return f"{where}: {name} cannot be compared, {baseline} has no speed in its rounds."
    figures = _figures(ratio)
    if row.verdict == "faster":
        times = significant(ratio.estimate)
        return f"{where}: {name} is {times} times as fast as {baseline}{figures}."
    if row.verdict == "slower":
        return (
            f"{where}: {name} is slower than {baseline}, at {significant(ratio.estimate)} times its"
            f" speed{figures}."
        )
    if row.verdict == "no difference":
        return (
            f"{where}: {name} and {baseline} are equally fast to within"
            f" {100 * minimum_effect:g} %, at a ratio of {significant(ratio.estimate)}{figures}."
        )
    return (
        f"{where}: whether {name} is faster than {baseline} is undecided, at a ratio of"
        f" {significant(ratio.estimate)}{figures}: {_why_undecided(ratio, minimum_effect)}."
    )


def _row_sentences(run: Run, comparison: Comparison, row: Row) -> list[str]:
    sentences = [speed_sentence(comparison, row, run.minimum_effect)]
    without = verdict(row.quiet_ratio, run.minimum_effect)
    if row.speed is not None and row.ratio != row.quiet_ratio and without != row.verdict:
        sentences.append(
            f"{comparison.group.title}: without noisy trials the verdict on {row.system} would be"
            f" {without!r} instead of {row.verdict!r}."
        )
    native = row.ratio_to_native
    if native is not None and row.system != "native" and comparison.baseline != "native":
        judged = verdict(native, run.minimum_effect)
        sentences.append(
            f"{comparison.group.title}: {row.system} reaches {100 * native.estimate:.1f} % of"
            f" native's speed{_figures(native)}: {judged}."
        )
    return sentences


def _ladder_sentences(run: Run, comparison: Comparison) -> list[str]:
    steps = [step for step in comparison.ladder if step.ratio is not None]
    if not steps or len(steps) < len(comparison.ladder):
        return []
    words = []
    for step in steps:
        assert step.ratio is not None
        cause = step.cause or f"{step.before} to {step.after}"
        words.append(f"{cause}: {_factor(step.ratio)} ({step.verdict})")
    return [
        f"{comparison.group.title}: from {steps[0].before} to {steps[-1].after}, factor by factor -"
        f" {'; '.join(words)}."
    ]


def _breakdown_sentences(entries: Sequence[Entry]) -> list[str]:
    sentences = []
    for place, system in dict.fromkeys((entry.place, entry.system) for entry in entries):
        share = extra_share(by_part(select(entries, place, system)))
        if share is not None:
            workload, form, placement = place
            sentences.append(
                f"{workload}, {form}, {placement} placement: {100 * share:.1f} % of the time of"
                f" forwarded calls is extra cost under {system}."
            )
    return sentences


def _trials_sentence(run: Run) -> str:
    samples = run.trials
    bad = sum(sample.status != "ok" for sample in samples)
    noisy = sum(sample.noisy for sample in samples)
    state = str(run.manifest.get("state", "unknown"))
    words = [f"{len(samples) - bad} of {len(samples)} trials ended with the right outputs"]
    words.append(f"{noisy} are marked noisy" if noisy else "none is marked noisy")
    if state != "finished":
        words.append(f"the run is not finished ({state})")
    return f"{'; '.join(words)}."


def _why_undecided(ratio: Interval, minimum_effect: float) -> str:
    if ratio.low is None or ratio.high is None:
        return f"an interval needs {TRIALS_NEEDED} rounds"
    if ratio.low <= 1.0 <= ratio.high:
        return "the interval holds 1"
    return f"less than the {100 * minimum_effect:g} % that matter"


def _figures(ratio: Interval) -> str:
    rounds = f"{ratio.count} round{'s' if ratio.count != 1 else ''}"
    if ratio.low is None or ratio.high is None:
        return f" ({rounds})"
    return f" (95 % interval {significant(ratio.low)} to {significant(ratio.high)}, {rounds})"


def _factor(ratio: Interval) -> str:
    text = significant(ratio.estimate)
    if ratio.low is None or ratio.high is None:
        return text
    return f"{text} [{significant(ratio.low)}, {significant(ratio.high)}]"
