"""The section of docs/lab/accuracy.md about job files, and the same for the terminal. Only renders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.comparing.errors import ErrorSummary, percent, signed_percent, summarize, summary_cells
from lab.comparing.predictions import Comparison
from lab.pages.markdown import paragraph, table

BEGIN, END = "<!-- job files -->", "<!-- end of job files -->"


def answered(comparisons: Sequence[Comparison]) -> list[Comparison]:
    return [c for c in comparisons if not c.error]


def terminal_summary(comparisons: Sequence[Comparison]) -> list[str]:
    predicted = answered(comparisons)
    lines = [f"job files: {len(predicted)} of {len(comparisons)} predicted"]
    for name, summary in _measures(predicted):
        lines.append(
            f"  {name:<32} median {percent(summary.median):>7}  95th percentile {percent(summary.p95):>7}"
            f"  largest {percent(summary.largest):>7}"
        )
    return lines


def section(comparisons: Sequence[Comparison], code: Mapping[str, Comparison], reasons: Mapping[str, str]) -> list[str]:
    """`code`: what the workloads' own code was predicted to take; `reasons`: why a job differs from it."""
    predicted = answered(comparisons)
    return [
        BEGIN,
        "## Workloads written as job files",
        "",
        *paragraph(
            f"""{len(predicted)} of the workloads above are also written as [job files](../jobs.md) (`lab/data/jobs`)
            and predicted as `vramcast predict` does. The errors are against the same measurements."""
        ),
        "",
        *table(
            ["error of", "job files", "median", "95th percentile", "largest"],
            [[name, *summary_cells(summary)] for name, summary in _measures(predicted)],
        ),
        "",
        *_beside_code(predicted, code, reasons),
        "",
        *table(
            ["job file", "reserved, error", "allocated, error", "beside its code"],
            [_row(c, code.get(c.measured.name)) for c in sorted(comparisons, key=lambda c: c.measured.name)],
        ),
        "",
        "`python -m lab.comparing.job_accuracy` predicts them again and rewrites this section.",
        END,
    ]


def _measures(comparisons: Sequence[Comparison]) -> list[tuple[str, ErrorSummary]]:
    return [
        ("peak reserved", summarize(c.reserved_error for c in comparisons)),
        ("peak allocated", summarize(c.allocated_error for c in comparisons)),
    ]


def _beside_code(
    predicted: Sequence[Comparison], code: Mapping[str, Comparison], reasons: Mapping[str, str]
) -> list[str]:
    both = [
        (c, code[c.measured.name]) for c in predicted if c.measured.name in code and not code[c.measured.name].error
    ]
    different = [c.measured.name for c, other in both if difference(c, other) != (0, 0)]
    lines = paragraph(
        f"""For {len(both) - len(different)} of {len(both)} the prediction is that of the workload's own code, to the
        byte. The others differ, and why:"""
    )
    return [*lines, "", *(f"- {name}: {reasons.get(name, 'not known yet')}" for name in sorted(different))]


def difference(job: Comparison, code: Comparison) -> tuple[int, int]:
    """(reserved, allocated) bytes that the job takes more than its code."""
    return job.reserved_bytes - code.reserved_bytes, job.allocated_bytes - code.allocated_bytes


def _row(c: Comparison, code: Comparison | None) -> list[str]:
    if c.error:
        return [c.measured.name, "not predicted", "–", "–"]
    beside = "–"
    if code is not None and not code.error:
        reserved, allocated = difference(c, code)
        beside = "equal" if not (reserved or allocated) else f"{reserved:+,d} and {allocated:+,d} bytes"
    return [c.measured.name, signed_percent(c.reserved_error), signed_percent(c.allocated_error), beside]
