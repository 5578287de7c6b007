"""The section of docs/lab/accuracy.md about times. Only renders."""

from __future__ import annotations

from collections.abc import Sequence

from lab.comparing.errors import percent, signed_percent, summarize
from lab.comparing.predictions import recordings
from lab.comparing.time_errors import (
    AT_HOST_SPEED,
    TimeComparison,
    blind,
    groups,
    is_variant,
    newest_blind,
    order_of_pairs,
    pairs_of_variants,
    summary,
)
from lab.comparing.times import PHASES
from lab.pages.markdown import paragraph, table

FAR_OFF = 0.01
BEGIN, END = "<!-- times -->", "<!-- end of times -->"


def section(comparisons: Sequence[TimeComparison]) -> list[str]:
    rows = sorted(comparisons, key=lambda comparison: comparison.measured.name)
    seen = sum(comparison.fitted for comparison in rows)
    noisy = ", ".join(f"`{comparison.measured.name}`" for comparison in rows if comparison.measured.noisy)
    lines = [
        BEGIN,
        "## Time of a step",
        "",
        *paragraph(
            f"""The predicted time of a step beside the measured one, for {len(rows)} workloads on the H200. A measured
            time is the mean of two: the median of steps with a wait between them, and the time of steps in a row
            (where those differ by more than 40 % something disturbed one of them, and the smaller counts:
            {noisy or "none"}); and the mean of all runs where a workload was measured more than once. Phases are those
            of the steps with a wait between them. [timing.md](../timing.md) says how it is predicted."""
        ),
        "",
        *paragraph(
            f"""**The tables that say *predicted before they were measured* are the honest ones**: the predictions were
            committed (`lab/data/predictions-*.jsonl`) before any of these workloads was timed, those of a later draw
            with what the misses of the earlier ones had shown. Rules were improved afterwards with a look at the
            misses, so the tables that say *now* are what the present code gives, not what to expect of workloads
            unlike these. Times of kernels are fitted to recorded ops, those of the host to recorded steps, of {seen} of
            these workloads."""
        ),
        "",
        *_at_host_speed(),
        "",
    ]
    for title, group in groups(rows):
        lines += [*_table(title, group), ""]
    lines += [*_memory(rows), ""]
    lines += paragraph("*Order of variants.* Pairs of runs of one model whose measured times differ by more than 5 %:")
    lines += ["", *table(["pairs", "in the right order", "of", "share"], [
        [title, str(pairs.right), str(pairs.total), f"{pairs.share:.1%}"] for title, pairs in pairs_of_variants(rows)
    ])]  # fmt: skip
    return [
        *lines,
        "",
        "<details><summary>Every workload</summary>",
        "",
        *table(
            ["workload", "measured, ms", "predicted, ms", "error", *PHASES, "limited by"],
            [_row(comparison) for comparison in rows],
            frozenset({0, 7}),
        ),
        "",
        "</details>",
        "",
        "`python -m lab.comparing.time_accuracy --write` predicts them again and rewrites this section.",
        END,
    ]


def _at_host_speed() -> list[str]:
    """What the rows mean that judge by another measure than the plain one."""
    return paragraph(
        f"""*{AT_HOST_SPEED.capitalize()}*: the H200's computer is shared, and what others do there makes its host take
        up to 1.8 times as long, for seconds or for a whole run; a step that waits for the host takes as much longer.
        Where the host's speed was watched while steps ran, these rows set those steps beside the prediction for a host
        of that speed, on the line through predictions for hosts of other speeds that were made before. (How the speed
        is read off was settled after drawn-7 had been measured, see [step-times.md](step-times.md).) The other rows are
        of runs as they came, beside the prediction for a host that is disturbed as usual."""
    )


def _memory(comparisons: Sequence[TimeComparison]) -> list[str]:
    """The memory of runs that were made for their times alone."""
    elsewhere = {workload.name for recording in recordings() for workload in recording.workloads}
    new = [comparison for comparison in comparisons if comparison.draw and comparison.measured.name not in elsewhere]
    errors = {comparison.measured.name: comparison.reserved_error for comparison in new}
    exact = sum(error == 0 for error in errors.values())
    worst = sorted((name for name in errors if abs(errors[name]) > FAR_OFF), key=lambda name: -abs(errors[name]))
    named = ", ".join(f"`{name}` {signed_percent(errors[name])}" for name in worst)
    totals = summarize(errors.values())
    return paragraph(
        f"""*Memory of the same runs.* {totals.count} of the drawn workloads were run for their times only, and are not
        in the tables of memory above. Their reserved peaks, with the present code: {exact} to the byte,
        {percent(totals.p95)} at the 95th percentile, {percent(totals.largest)} at most. Off by more than
        {percent(FAR_OFF)}: {named or "none"}. Each is predicted for as many steps as were run: reserved memory can
        still grow after six, which is what `predict` looks at."""
    )


def short_summary(comparisons: Sequence[TimeComparison], links_to: str) -> list[str]:
    """Lines for the README and docs/accuracy.md, after those about memory. `links_to`: the folder of the pages."""
    before = blind(comparisons)
    (_, count, middle, _, within), *_ = summary(list(comparisons))
    (_, count_drawn, middle_drawn, _, within_drawn), *_ = summary(newest_blind(comparisons))
    pairs = order_of_pairs(filter(is_variant, before))
    watched = {name: row for name, *row in summary(newest_blind(comparisons))}.get(f"step, {AT_HOST_SPEED}")
    known = f" ({watched[1]:.1%} and {watched[3]:.0%} {AT_HOST_SPEED}: it is shared)" if watched else ""
    return paragraph(
        f"""The time of a step, of {count_drawn} workloads drawn at random and predicted before they were measured:
        {middle_drawn:.1%} off at the median, {within_drawn:.0%} within 20 %{known}; {pairs.right} of {pairs.total}
        pairs of variants of one model in the right order. Over all {count} with the present code, most of which it was
        tuned on: {middle:.1%}, {within:.0%} ([timing]({links_to}timing.md))."""
    )


def _table(title: str, comparisons: Sequence[TimeComparison]) -> list[str]:
    return table(
        [f"error of ({title})", "workloads", "median", "nine of ten below", "within 20 %"],
        [
            [name, str(count), f"{middle:.1%}", f"{most:.1%}", f"{within:.0%}"]
            for name, count, middle, most, within in summary(list(comparisons))
        ],
    )


def _row(comparison: TimeComparison) -> list[str]:
    measured, predicted = comparison.measured, comparison.predicted
    errors = [comparison.phase_error(phase) for phase in PHASES]
    return [
        f"`{measured.name}`",
        f"{measured.seconds * 1e3:.1f}",
        f"{predicted.seconds * 1e3:.1f}",
        f"{comparison.error:+.1%}",
        *("–" if error is None else f"{error:+.0%}" for error in errors),
        predicted.limited_by,
    ]
