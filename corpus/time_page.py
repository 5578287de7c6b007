"""The section of docs/accuracy.md about times. Only renders."""

from __future__ import annotations

from collections.abc import Sequence

from corpus.markdown import paragraph, table
from corpus.time_errors import TimeComparison, blind, is_variant, order_of_pairs, summary
from corpus.times import PHASES

BEGIN, END = "<!-- times -->", "<!-- end of times -->"


def section(comparisons: Sequence[TimeComparison]) -> list[str]:
    found = sorted(comparisons, key=lambda comparison: comparison.measured.name)
    unseen = [comparison for comparison in found if not comparison.fitted]
    pairs = order_of_pairs(found)
    return [
        BEGIN,
        "## Time of a step",
        "",
        *paragraph(
            f"""The predicted time of a step beside the measured one (the median of the steps after warm-up; the mean
            where a workload was measured twice), for {len(found)} workloads on the H200. Times of kernels and of the
            host are fitted to recorded steps of {len(found) - len(unseen)} of them; the other {len(unseen)} were only
            measured as a whole. A host-bound step differs by 10 to 20 % from run to run on the machine itself.
            [timing.md](timing.md) says how it is predicted."""
        ),
        "",
        *_table("all", found),
        "",
        *_table("not seen by any fit", unseen),
        "",
        *paragraph(
            f"""*Order of variants.* Of {pairs.total} pairs of runs of one model whose measured times differ by more
            than 5 %, {pairs.right} ({pairs.right / max(1, pairs.total):.0%}) are predicted in the right order."""
        ),
        "",
        "<details><summary>Every workload</summary>",
        "",
        *table(
            ["workload", "measured, ms", "predicted, ms", "error", *PHASES, "limited by"],
            [_row(comparison) for comparison in found],
            frozenset({0, 7}),
        ),
        "",
        "</details>",
        "",
        "`python -m corpus.time_accuracy --write` predicts them again and rewrites this section.",
        END,
    ]


def readme_summary(comparisons: Sequence[TimeComparison]) -> list[str]:
    """Lines for the README, after those about memory."""
    unseen = [comparison for comparison in comparisons if not comparison.fitted]
    (_, count, middle, _, within), *_ = summary(list(comparisons))
    (_, count_unseen, middle_unseen, _, within_unseen), *_ = summary(unseen)
    pairs = order_of_pairs(comparisons)
    return paragraph(
        f"""The time of a step, over {count} of them: {middle:.1%} at the median, {within:.0%} within 20 %; of the
        {count_unseen} that no fit has seen {middle_unseen:.1%} and {within_unseen:.0%}. {pairs.right} of {pairs.total}
        pairs of variants of one model are in the right order ([timing](docs/timing.md))."""
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
