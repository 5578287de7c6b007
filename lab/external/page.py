"""The published measurements in docs/lab/accuracy.md: aggregates by card, sources named, the worst rows explained."""

from __future__ import annotations

from lab.comparing.errors import percent, signed_percent
from lab.external.explanations import explain
from lab.external.rows import DRAW_SEED, XMEM
from lab.external.score import SOURCE_NAMES, Evaluation, Group, Scored
from lab.pages.markdown import paragraph, table

WORST = 10


def terminal_summary(evaluation: Evaluation) -> list[str]:
    lines = [f"published runs on other cards: {len(evaluation.scored)} rows predicted"]
    for group in evaluation.headline():
        lines.append(
            f"  {group.name:<38} {group.total.count:4} rows  median {percent(group.total.median):>7} of the figure, "
            f"{percent(group.net.median):>7} without the constant"
        )
    return lines


def short_summary(evaluation: Evaluation) -> list[str]:
    cards = ", ".join(sorted({CARD_NAMES.get(s.row.gpu, s.row.gpu) for s in evaluation.scored}))
    trusted, convolutions = evaluation.headline()[:2]
    return paragraph(
        f"""Runs that others published for cards we do not have ({cards}), {len(evaluation.scored)} drawn at random:
        median error {percent(trusted.total.median)} on the {trusted.total.count} rows whose figure is good to 1–3 %,
        {percent(convolutions.total.median)} on {convolutions.total.count} convolutional networks."""
    )


CARD_NAMES = {"a100-40gb": "A100 40 GB", "rtx-3060": "RTX 3060", "rtx-4060": "RTX 4060"}


def section(evaluation: Evaluation) -> list[str]:
    return [
        *_introduction(evaluation),
        "",
        *_groups(evaluation.headline()),
        "",
        "By card:",
        "",
        *_groups(evaluation.by_card()),
        "",
        *_constants(evaluation),
        "",
        *_worst(evaluation.worst(WORST)),
    ]


def _introduction(evaluation: Evaluation) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in evaluation.versions.items())
    refused = sum(s.predicted.refused for s in evaluation.scored)
    drawn = len(evaluation.scored) + len(evaluation.unanswered) + evaluation.mismatched
    lines = [
        "## Published runs on other cards",
        "",
        *paragraph(
            """Other people's measurements of training runs, rebuilt from their recipes and predicted for their cards.
            Nothing in vramcast was fitted to these rows, though they led to rules (Mish's backward, benchmark mode's
            emptied cache, refused workspaces), and the rows themselves are not part of this repository.
            Sources:"""
        ),
        "",
        *paragraph(
            """- **GPUMemNet** (Yousefzadeh-Asl-Miandoab et al., arXiv 2602.17817, github itu-rad/GPUMemNet): an
            A100-SXM4-40GB, highest device-wide `memory.used` that nvidia-smi showed, polled once a second; random MLPs,
            CNNs and transformer encoders, and timm's training script on models of its registry (with
            `cudnn.benchmark`). torch 2.4 or 2.5.""",
            hang="  ",
        ),
        *paragraph(
            """- **xMem** (Shi et al., doi 10.1145/3721462.3770773, github Stone-ResearchLife/xMem, MIT licence): RTX
            3060 12 GB, RTX 4060 8 GB, A100 40 GB; NVML's device-wide peak less its first sample. torch 2.6.""",
            hang="  ",
        ),
        "",
        *paragraph(
            f"""{drawn} rows were drawn (seed {DRAW_SEED}; all rows of the two small files, a draw stratified by size of
            the others, no timm model twice); {len(evaluation.unanswered)} could not be predicted,
            {evaluation.mismatched} were dropped because the library builds a model with another parameter count.
            For {refused} of them the virtual card ran out of memory; they are scored with what they need.
            Libraries: {versions}."""
        ),
        "",
        *paragraph(
            """The published figures hold a constant that is not predicted: CUDA context and kernels, or what the method
            left of them. One constant is fitted to each file (for xMem to each card and set of runs): the median of
            measured − predicted reserved. *Of the figure* is the error relative to the published number, *without the
            constant* relative to what remains. A row is convolution-heavy from four convolutions on that look at
            neighbours. Rated good to 1–3 % (by the notes that come with the collection) are transformers, MLPs above
            2 GiB, timm rows that are neither flagged for workspaces or spikes nor convolution-heavy, and xMem's
            language models."""
        ),
    ]
    if evaluation.unanswered:
        reasons = sorted({p.error.partition("(")[0].strip()[:140] for p in evaluation.unanswered})
        lines += ["", "Not predicted: " + "; ".join(reasons) + "."]
    return lines


def _groups(groups: list[Group]) -> list[str]:
    header = [
        "rows", "count", "of the figure: median", "95th percentile", "largest", "without the constant: median",
        "95th percentile",
    ]  # fmt: skip
    rows = [
        [
            _card(g.name), str(g.total.count), percent(g.total.median), percent(g.total.p95), percent(g.total.largest),
            percent(g.net.median), percent(g.net.p95),
        ]
        for g in groups
        if g.total.count
    ]  # fmt: skip
    return table(header, rows)


def _card(name: str) -> str:
    card, comma, rest = name.partition(",")
    return CARD_NAMES.get(card, card) + comma + rest


def _constants(evaluation: Evaluation) -> list[str]:
    fitted = [
        f"{SOURCE_NAMES.get(group) or 'xMem, ' + _set(group)}: {value:,.0f}"
        for group, value in sorted(evaluation.constants_mib.items())
    ]
    return [
        *paragraph("Fitted constants in MiB: " + "; ".join(fitted) + "."),
        "",
        *paragraph(
            """cuBLAS is assumed (not looked up) to take the same
            workspace in torch 2.4 to 2.6 as in the torch predicted here on these cards (8,320
            KiB a handle, 1 MiB for cublasLt), so it needs no correction. Rows of xMem that do not record where
            gradients are cleared are rebuilt with `zero_grad` at the start of the step: most language models then agree
            to 2 MiB, where clearing after the forward pass would have needed 300 to 900 MiB more than was measured."""
        ),
    ]


def _set(group: str) -> str:
    card, _, number = group.partition(" set ")
    return f"{CARD_NAMES.get(card, card)} set {number}"


def _worst(worst: list[Scored]) -> list[str]:
    lines = [f"The {len(worst)} rows with the largest error of the figure:", ""]
    rows = [
        [
            f"{SOURCE_NAMES[s.row.source]}: {describe(s)}",
            CARD_NAMES.get(s.row.gpu, s.row.gpu),
            signed_percent(s.total_error),
            f"{s.difference_mib:+,.0f}",
            explain(s),
        ]
        for s in worst
    ]
    return lines + table(["row", "card", "error", "in MiB", "why"], rows, text_columns=frozenset({0, 1, 4}))


def describe(scored: Scored) -> str:
    fields = scored.row.fields
    name = fields.get("model") or fields.get("architecture") or "encoder"
    details = [f"batch {fields['batch']}"]
    if scored.row.source == XMEM:
        details.append(fields["optimizer"])
    if "depth" in fields:
        details = [f"{fields['depth']} deep", f"{fields['image_size']} px", *details]
    return f"{name} ({', '.join(details)})"
