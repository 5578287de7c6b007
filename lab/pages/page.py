"""docs/lab/accuracy.md and the shorter forms of the same results. Only renders; computes no error itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lab.comparing.errors import ErrorSummary, percent, signed_percent, summarize, summary_cells
from lab.comparing.predictions import STEPS, Comparison, Recording
from lab.external import page as external_page
from lab.pages.markdown import paragraph, table

MIB = 1 << 20
GIB = 1 << 30
WORST = 10


@dataclass(frozen=True)
class Result:
    """A recording and what was predicted for it."""

    recording: Recording
    comparisons: tuple[Comparison, ...]
    left_out: dict[str, str]

    @property
    def answered(self) -> list[Comparison]:
        return [c for c in self.comparisons if not c.error]

    @property
    def title(self) -> str:
        environment = self.recording.environment
        return f"{environment['gpu']}, torch {environment['torch']}"


def reserved(comparisons: Iterable[Comparison]) -> ErrorSummary:
    return summarize(c.reserved_error for c in comparisons)


def allocated(comparisons: Iterable[Comparison]) -> ErrorSummary:
    return summarize(c.allocated_error for c in comparisons)


def device(comparisons: Iterable[Comparison]) -> ErrorSummary:
    return summarize(c.device_error for c in comparisons if c.device_error is not None)


def terminal_summary(results: list[Result], external: Any) -> list[str]:
    lines = []
    for result in results:
        lines.append(f"{result.title}: {len(result.answered)} of {len(result.comparisons)} workloads predicted")
        for name, summary in _measures(result.answered):
            lines.append(
                f"  {name:<32} median {percent(summary.median):>7}  95th percentile {percent(summary.p95):>7}"
                f"  largest {percent(summary.largest):>7}"
            )
        lines += [f"  left out: {name}, {why}" for name, why in result.left_out.items()]
        lines += [f"  not predicted: {c.measured.name}: {c.error[:150]}" for c in result.comparisons if c.error]
    if external is not None:
        lines += external_page.terminal_summary(external)
    return lines


def _measures(comparisons: list[Comparison]) -> list[tuple[str, ErrorSummary]]:
    return [
        ("peak reserved", reserved(comparisons)),
        ("peak allocated", allocated(comparisons)),
        ("device bytes (nvidia-smi)", device(comparisons)),
    ]


def short_summary(results: list[Result], external: Any) -> list[str]:
    lines = []
    for result in results:
        drawn = [c for c in result.answered if c.measured.drawn]
        beside = f", {len(drawn)} of them drawn at random" if drawn else ""
        lines += [
            "",
            *paragraph(
                f"""{len(result.answered)} of {len(result.comparisons)} training workloads measured on an
                {result.recording.environment["gpu"]} are predicted{beside}. Error of the prediction:"""
            ),
            "",
            *table(
                ["", "median", "95th percentile", "largest"],
                [[name, *summary_cells(s)[1:]] for name, s in _measures(result.answered)]
                + ([["peak reserved, drawn at random", *summary_cells(reserved(drawn))[1:]]] if drawn else []),
            ),
        ]
    if external is not None:
        lines += ["", *external_page.short_summary(external)]
    return [*lines, ""]


FIRST_LOOK = """*Unseen workloads.* The drawn sets (`lab/measuring/draw.py`: names from the libraries' own lists,
    settings and shapes from ranges, by a seed) were drawn, predicted, and only then measured. The very first
    prediction of the 66 of seed 3 (timm and torchvision classifiers, U-Nets, language models) was off by 0.00 % at
    the median (95th percentile 0.21 %, largest 1.02 %) for reserved and by 0.00 % (0.04 %, 0.08 %) for allocated;
    that of the 60 of seed 4 (also detection, segmentation, video, diffusion, speech and recurrent networks) by 0.00
    % (0.40 %, 4.1 %) and 0.00 % (0.03 %, 0.04 %). Of the 60 of seed 9, drawn alike and run for their times, 55
    reserved to the byte what was predicted (95th percentile 0.49 %, largest 6.6 %; as many steps as were run,
    replayed, give 57, 0.05 % and 0.49 %). The second set (`ho-`) was chosen by hand to be unlike the first, and its
    very first prediction was worse: 0.22 % at the median (95th percentile 11.8 %, largest 21.8 %) for reserved. Its
    recorded allocations, compared with the predicted ones event by event, led to many of the mechanisms that are
    modelled now, so it counts as seen."""


def document(results: list[Result], external: Any, machine: dict[str, str], job_files: Sequence[str] = ()) -> list[str]:
    """`job_files` is the section that lab/pages/job_page.py makes."""
    lines = [
        "# Accuracy",
        "",
        "<!-- Written by `make accuracy`; changes made by hand are lost. -->",
        "",
        *paragraph(
            """Each workload below was run on the real card and predicted without one. *Reserved* is the highest memory
            that PyTorch's caching allocator held, *allocated* the highest sum of live blocks, *device* what NVML says
            of the process, CUDA context and loaded kernels included. Errors are (predicted − measured) / measured; the
            summaries are of their absolute values."""
        ),
        "",
        *paragraph(FIRST_LOOK),
    ]
    for result in results:
        lines += ["", f"## {result.title}", "", *_summary_tables(result), "", *_worst(result), "", *_full(result)]
        lines += ["", *_how(result, machine)]
    if job_files:
        lines += ["", *job_files]
    if external is not None:
        lines += ["", *external_page.section(external)]
    return lines


def _summary_tables(result: Result) -> list[str]:
    answered = result.answered
    lines = [f"{len(answered)} of {len(result.comparisons)} workloads were predicted.", ""]
    header = ["error of", "workloads", "median", "95th percentile", "largest"]
    lines += table(header, [[name, *summary_cells(summary)] for name, summary in _measures(answered)])
    lines += ["", "By kind of workload (reserved, then allocated):", ""]
    header = ["workloads", "count", "median", "95th percentile", "largest", "median", "largest"]
    return lines + table(header, [_kind_row(name, group) for name, group in _kinds(answered) if group])


def _kind_row(name: str, group: list[Comparison]) -> list[str]:
    of_allocated = allocated(group)
    return [name, *summary_cells(reserved(group)), percent(of_allocated.median), percent(of_allocated.largest)]


def _kinds(answered: list[Comparison]) -> list[tuple[str, list[Comparison]]]:
    def some(choose: Callable[[Comparison], bool]) -> list[Comparison]:
        return [c for c in answered if choose(c)]

    kinds = [
        ("drawn at random (see above)", some(lambda c: c.measured.drawn)),
        ("second set", some(lambda c: c.measured.held_out)),
        ("first set", some(lambda c: not c.measured.held_out and not c.measured.drawn)),
        ("with convolutions that matter", some(lambda c: c.measured.convolution)),
        ("without", some(lambda c: not c.measured.convolution)),
    ]
    for family in sorted({c.measured.family for c in answered}):
        kinds.append((f"family: {family}", some(lambda c, family=family: c.measured.family == family)))  # type: ignore[misc]
    return kinds


def _worst(result: Result) -> list[str]:
    worst = sorted(result.answered, key=lambda c: -abs(c.reserved_error))[:WORST]
    lines = [f"The {len(worst)} largest errors:", ""]
    return lines + table(
        ["workload", "reserved, measured", "error", "error in MiB", "allocated, error"],
        [
            [
                c.measured.name,
                f"{c.measured.reserved_bytes / MIB:,.0f} MiB",
                signed_percent(c.reserved_error),
                f"{(c.reserved_bytes - c.measured.reserved_bytes) / MIB:+,.0f}",
                signed_percent(c.allocated_error),
            ]
            for c in worst
        ],
    )


def _full(result: Result) -> list[str]:
    lines = ["### Every workload", ""]
    lines += ["Sizes in MiB; *seconds* is the time the prediction took, imports not counted.", ""]
    header = [
        "workload", "reserved, measured", "predicted", "error", "allocated, measured", "predicted", "error",
        "device, error", "seconds",
    ]  # fmt: skip
    lines += table(header, [_full_row(c) for c in result.comparisons])
    if result.left_out:
        lines += ["", "Not predicted here:", ""]
        lines += [f"- {name}: {why}" for name, why in sorted(result.left_out.items())]
    return lines


def _full_row(c: Comparison) -> list[str]:
    measured = c.measured
    sizes = [f"{measured.reserved_bytes / MIB:,.0f}", f"{measured.allocated_bytes / MIB:,.0f}"]
    if c.error:
        return [measured.name, sizes[0], "not predicted", "–", sizes[1], "–", "–", "–", f"{c.seconds:.1f}"]
    device_error = "–" if c.device_error is None else signed_percent(c.device_error)
    return [
        measured.name,
        sizes[0], f"{c.reserved_bytes / MIB:,.0f}", signed_percent(c.reserved_error),
        sizes[1], f"{c.allocated_bytes / MIB:,.0f}", signed_percent(c.allocated_error),
        device_error,
        f"{c.seconds:.1f}",
    ]  # fmt: skip


def _how(result: Result, machine: dict[str, str]) -> list[str]:
    environment = result.recording.environment
    packages = ", ".join(f"{name} {version}" for name, version in environment.get("packages", {}).items())
    return [
        "### How it was measured",
        "",
        *paragraph(
            f"""One workload, one process; six steps, peaks over the whole process. Driver {environment.get("driver")},
            CUDA {environment.get("cuda")}, cuDNN {environment.get("cudnn")}, Python {environment.get("python")};
            {packages}. Definitions: `lab/data/corpus.yaml` and `lab/workloads`; results:
            `lab/data/measurements/{result.recording.path.name}`."""
        ),
        "",
        *paragraph(
            f"""Predicted with {STEPS} steps of the same code on a virtual card, two processes at a time, with torch
            {machine["torch"]}, Python {machine["python"]}."""
        ),
        "",
        "### To repeat it",
        "",
        "```",
        "make accuracy                                                            # predictions, this page; no GPU",
        "python -m lab.measuring.measure_corpus --mode memory --out results              # on a machine with the GPU",
        "python -m lab.measuring.import_measurements results/memory.jsonl                # into lab/data/measurements",
        "```",
        "",
        "`tests/accuracy` holds each workload to its tolerance in every test run.",
    ]
