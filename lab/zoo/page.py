"""docs/lab/zoo.md and the sentence about it in other pages, from the manifest and what was kept of each script."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.comparing.time_accuracy import SUMMARIES
from lab.pages.markdown import paragraph, rewritten, table
from lab.zoo import step_times
from lab.zoo.manifest import Script
from lab.zoo.records import MEASURED, PREDICTED, Records

PAGE = Path(__file__).parents[2] / "docs" / "lab" / "zoo.md"
VERSIONS = Path(__file__).with_name("versions")
"""Records of a few scripts under other versions of torch: `python -m lab.zoo run --out lab/zoo/versions/2.8.json`."""
BEGIN, END = "<!-- zoo -->", "<!-- end of zoo -->"
GIB = 1 << 30


@dataclass(frozen=True)
class Row:
    """A script, what was predicted of it and what was measured."""

    script: Script
    predicted: dict[str, Any]
    measured: dict[str, Any]

    @property
    def answered(self) -> bool:
        return self.predicted.get("outcome") == "answered"

    @property
    def was_measured(self) -> bool:
        return self.measured.get("outcome") == "measured"

    @property
    def error(self) -> float | None:
        """Error of the memory reserved over the steps that the script made in both runs, as a share of what was
        measured."""
        if not (self.answered and self.was_measured):
            return None
        return self.predicted_bytes / int(self.measured["peak_reserved_bytes"]) - 1

    @property
    def error_without_options(self) -> float | None:
        """The same as `vramcast run` answers without the options that this script is run with."""
        if self.error is None:
            return None
        predicted = self.predicted.get("without_options_bytes") or self.predicted_bytes
        return int(predicted) / int(self.measured["peak_reserved_bytes"]) - 1

    @property
    def benchmarks(self) -> bool:
        """Whether cuDNN's benchmark tries plans with more workspace than the run needs."""
        needed = int(self.predicted.get("peak_reserved_bytes", 0))
        return int(self.predicted.get("touched_reserved_bytes", needed)) > needed

    @property
    def predicted_bytes(self) -> int:
        """The most that is reserved on a card with room."""
        return int(self.predicted["touched_reserved_bytes" if self.benchmarks else "made_steps_peak_reserved_bytes"])


def write(scripts: Iterable[Script], path: Path = PAGE, summaries: Mapping[Path, str] = SUMMARIES) -> None:
    """`summaries`: the pages that hold the sentence, with what links from them to docs begin with."""
    predicted, measured = Records(PREDICTED).by_script, Records(MEASURED).by_script
    rows = [Row(script, predicted.get(script.name, {}), measured.get(script.name, {})) for script in scripts]
    path.write_text("\n".join(_page(rows)) + "\n", encoding="utf-8")
    for summary, docs in summaries.items():
        short = rewritten(summary.read_text(encoding="utf-8"), _summary(rows, docs), BEGIN, END)
        summary.write_text(short, encoding="utf-8")


def _summary(rows: list[Row], docs: str) -> list[str]:
    errors = [abs(row.error) for row in rows if row.error is not None]
    tried = [row for row in rows if row.predicted]
    text = (
        f"{sum(row.answered for row in tried)} of {len(tried)} public training scripts are answered as their authors "
        f"wrote them. Of the {len(errors)} that were also run on the GPU, {sum(e <= 0.01 for e in errors)} were "
        f"predicted within 1 % of reserved memory and {sum(e <= 0.05 for e in errors)} within 5 % "
        f"([the zoo]({docs}lab/zoo.md))."
    )
    return [BEGIN, *paragraph(text), END]


def _page(rows: list[Row]) -> list[str]:
    repositories = {row.script.repository.name for row in rows}
    tried = [row for row in rows if row.predicted]
    answered = [row for row in tried if row.answered]
    errors = [abs(row.error) for row in rows if row.error is not None]
    by_default = [abs(row.error_without_options) for row in rows if row.error_without_options is not None]
    lines = ["# The zoo: scripts that nobody here wrote", ""]
    lines += paragraph(
        f"{len(rows)} public training scripts from {len(repositories)} repositories, each at one commit, run as their "
        "authors wrote them: through `vramcast run` on a machine without a GPU, and on a GPU. The scripts are not "
        "part of this repository: they are fetched on demand. `python -m lab.zoo page` writes this page."
    )
    lines += [""]
    gpus = sorted({str(row.measured["gpu"]) for row in rows if row.was_measured and row.measured.get("gpu")})
    summary = [
        ["scripts run", str(len(tried))],
        ["answered", _share(len(answered), len(tried))],
        [f"measured too ({', '.join(gpus)})" if gpus else "measured too", str(len(errors))],
        ["reserved memory within 1 %", _share(sum(e <= 0.01 for e in errors), len(errors))],
        ["within 5 %", _share(sum(e <= 0.05 for e in errors), len(errors))],
        ["within 1 % where no option was given", _share(sum(e <= 0.01 for e in by_default), len(by_default))],
    ]
    lines += table(["", ""], summary)
    lines += ["", "## Kinds and styles", ""]
    kinds = Counter(row.script.kind for row in rows)
    styles = Counter(row.script.style for row in rows)
    lines += paragraph("Kinds: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) + ".")
    lines += [""]
    lines += paragraph("Styles: " + ", ".join(f"{style} {count}" for style, count in sorted(styles.items())) + ".")
    lines += ["", "## Every script", ""]
    lines += paragraph(
        "Predicted and measured: the most memory that PyTorch's allocator reserves over the steps that the script made "
        "in both runs. (The report of `vramcast run` is of a few more: it repeats the last step to see whether memory "
        "still grows.) Seconds: from the start of `vramcast run` to its answer, on two cores that others use: the "
        "quickest of several runs."
    )
    lines += [""]
    header = ["script", "repository", "kind", "style", "predicted (GiB)", "measured (GiB)", "off by", "seconds"]
    lines += table(header, (_cells(row) for row in rows), frozenset({0, 1, 2, 3}))
    lines += _benchmarked([row for row in rows if row.answered and row.was_measured and row.benchmarks])
    lines += _not_answered([row for row in tried if not row.answered])
    lines += _not_measured([row for row in rows if row.measured and not row.was_measured])
    lines += _far_off([row for row in rows if row.error is not None and abs(row.error) > 0.01])
    lines += _step_times(rows)
    lines += _versions(rows)
    lines += _stand_ins(rows)
    lines += _how_to()
    return lines


def _share(count: int, total: int) -> str:
    return f"{count} of {total} ({count / total:.0%})" if total else "none yet"


def _cells(row: Row) -> list[str]:
    script = row.script
    address = f"https://github.com/{script.repository.name}/blob/{script.repository.commit}/{script.path}"
    seconds = row.predicted.get("seconds")
    return [
        f"[{script.name}]({address})", script.repository.name, script.kind, script.style,
        f"{row.predicted_bytes / GIB:.3f}" if row.answered else str(row.predicted.get("outcome", "")),
        _size(row.measured, "peak_reserved_bytes"),
        "" if row.error is None else "0" if row.error == 0 else f"{row.error:+.2%}",
        "" if seconds is None else f"{seconds:.0f}",
    ]  # fmt: skip


def _size(record: dict[str, Any], name: str) -> str:
    """The size in GiB, or why there is no figure."""
    return f"{record[name] / GIB:.3f}" if name in record else str(record.get("outcome", ""))


def _benchmarked(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    lines = ["", "## cudnn.benchmark: what a run touches and what it needs", ""]
    lines += paragraph(
        "While cuDNN tries its plans, workspaces come and go where the card has room. Needed: what is reserved "
        "without them, in a later step; the verdict is about this figure. Touched: the most, as in the table above."
    )
    lines += [""]
    header = ["script", "needed: predicted (GiB)", "measured", "off by", "touched: predicted", "measured", "off by"]
    cells = []
    for row in rows:
        figures = (
            (int(row.predicted["made_steps_peak_reserved_bytes"]), min(row.measured["step_peaks_bytes"][1:])),
            (row.predicted_bytes, int(row.measured["peak_reserved_bytes"])),
        )
        told = [[f"{a / GIB:.3f}", f"{b / GIB:.3f}", "0" if a == b else f"{a / b - 1:+.2%}"] for a, b in figures]
        cells.append([row.script.name, *told[0], *told[1]])
    return lines + table(header, cells, frozenset({0}))


def _not_answered(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    lines = ["", "## Not answered", ""]
    for row in rows:
        lines += paragraph(f"- **{row.script.name}** ({row.predicted['outcome']}): {_first_line(row.predicted)}", "  ")
    return lines


def _not_measured(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    lines = ["", "## Not measured", ""]
    for row in rows:
        lines += paragraph(f"- **{row.script.name}** ({row.measured['outcome']}): {_first_line(row.measured)}", "  ")
    return lines


def _far_off(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    lines = ["", "## More than 1 % off, and what the report says of it", ""]
    for row in sorted(rows, key=lambda row: -abs(row.error or 0)):
        notes = [note["text"] + (f" ({note['where']})" if note.get("where") else "") for note in row.predicted["notes"]]
        lines += paragraph(f"- **{row.script.name}**, {row.error:+.1%}: {'; '.join(notes) or 'nothing'}", "  ")
    return lines


def _first_line(record: dict[str, Any]) -> str:
    lines = str(record.get("message", "")).splitlines()
    messages = [line for line in lines if line.startswith("vramcast: ")] or lines[-1:] or [""]
    text = messages[-1].removeprefix("vramcast: ").removesuffix(" (--traceback shows all of it)")
    return text.replace("|", "\\|").replace("<", "\\<")


def _step_times(rows: list[Row], path: Path = step_times.TIMED) -> list[str]:
    timed = Records(path).by_script
    errors = step_times.errors(timed, {row.script.name: row.predicted for row in rows})
    if not errors:
        return []
    sizes = sorted(map(abs, errors.values()))
    near = sum(size <= step_times.NEAR for size in sizes)
    lines = ["", "## Step times", ""]
    lines += paragraph(
        f"{len(sizes)} scripts were timed on the GPU one at a time (`lab/zoo/quiet.py`; loaders gave the batches of "
        "the warm-up again: how long data takes to load is not predicted). For an undisturbed host, predictions are "
        f"off by {statistics.median(sizes):.1%} at the median, and {near / len(sizes):.0%} are within 20 %."
    )
    lines += [""]
    cells = []
    for name in sorted(errors, key=lambda name: -abs(errors[name])):
        seconds = next(row.predicted["step_seconds"] for row in rows if row.script.name == name)
        cells.append([name, f"{1e3 * seconds:.1f}", f"{1e3 * timed[name]['step_seconds']:.1f}", f"{errors[name]:+.0%}"])
    return lines + table(["script", "predicted (ms)", "measured (ms)", "off by"], cells, frozenset({0}))


def _versions(rows: list[Row]) -> list[str]:
    """What the same scripts reserve under other versions of torch."""
    others = {file.stem: Records(file).by_script for file in sorted(VERSIONS.glob("*.json"), key=_by_number)}
    shown = [row for row in rows if any(row.script.name in records for records in others.values())]
    if not shown:
        return []
    lines = ["", "## Under other versions of torch", ""]
    lines += paragraph(
        "Predicted, in GiB, each under the torch itself. Versions differ in workspaces and in what they save, so the "
        "figures differ a little; only those of the torch above were measured. The cuDNN of torch 2.6 cannot be asked "
        "about convolutions, so their workspaces are fitted there; small convolutional networks show it most."
    )
    cells = [
        [row.script.name, *(_reserved(r.get(row.script.name)) for r in others.values()), _reserved(row.predicted)]
        for row in shown
    ]
    return [*lines, "", *table(["script", *others, "as above"], cells, frozenset({0}))]


def _by_number(file: Path) -> list[int]:
    return [int(part) for part in file.stem.split(".")]


def _reserved(record: dict[str, Any] | None) -> str:
    if record is None:
        return ""
    answered = record.get("outcome") == "answered"
    return f"{record['made_steps_peak_reserved_bytes'] / GIB:.3f}" if answered else str(record.get("outcome"))


def _stand_ins(rows: list[Row]) -> list[str]:
    lines = ["", "## What differs from the scripts as their authors ran them", ""]
    lines += paragraph(
        "All data is generated (`lab/zoo/recipes`), nothing is downloaded, and a script stops after a few steps. "
        "Beyond that:"
    )
    lines += [""]
    for row in rows:
        told = [f"{name} stood in for: {reason}" for name, reason in row.script.stand_ins.items()]
        told += [row.script.substitutes] if row.script.substitutes else []
        if row.script.options:
            without = "" if row.error_without_options is None else f"; {row.error_without_options:+.1%} without it"
            told.append(f"run with `{' '.join(row.script.options)}`, as the report advises{without}")
        if told:
            lines += paragraph(f"- {row.script.name}: {'; '.join(told)}", "  ")
    return lines


def _how_to() -> list[str]:
    return [
        "",
        "## Run it",
        "",
        "```",
        "pip install -r lab/zoo/requirements.txt        # beside vramcast[corpus]",
        "python -m lab.zoo list",
        "python -m lab.zoo run [NAME ...]               # predict: needs no GPU; keeps lab/zoo/predicted.json",
        "python -m lab.zoo measure --jobs 8 [NAME ...]  # on a GPU; keeps lab/zoo/measured.json",
        "python -m lab.zoo times --out FOLDER [NAME ...]  # on a GPU: how long steps take",
        "python -m lab.zoo timed FOLDER                 # keeps lab/zoo/timed.json and shows it beside the predictions",
        "python -m lab.zoo page                         # writes this page",
        "```",
        "",
        *paragraph(
            "Scripts and data are kept in `~/.cache/vramcast-zoo`, or where `VRAMCAST_ZOO` says; `VRAMCAST_ZOO_MIRROR` "
            "names a folder of git directories (`owner+name`) to take repositories from instead of GitHub. For a GPU "
            "machine without a network, `python -m lab.zoo bundle` writes `.carry/zoo`, and `python -m lab.zoo unpack` "
            "lays it out. A new script is an entry in `lab/zoo/zoo.toml`; `lab/zoo/manifest.py` explains the fields."
        ),
    ]
