"""A prediction as files for other programs: `--export FILE`, the format by the file's suffix."""

from __future__ import annotations

import csv
import io
import pickle
from collections.abc import Callable
from pathlib import Path

from vramcast.base.errors import UsageError
from vramcast.base.language import name, say, sentence
from vramcast.base.units import format_gib, format_size
from vramcast.memory import Prediction
from vramcast.memory.account import largest
from vramcast.memory.step_course import StepCourse, step_course
from vramcast.memory.torch_snapshot import torch_snapshot
from vramcast.report.module_rows import module_rows
from vramcast.report.svg import step_svg
from vramcast.report.time import headline
from vramcast.report.wording import percent, place, verdict
from vramcast.trace.schema import KINDS

_MOST_MODULES = 16
_MOST_NOTES = 10


def export(prediction: Prediction, path: Path) -> bytes:
    return _format(path)(prediction)


def check_format(path: Path | None) -> None:
    """Find out before the work whether there is such a format."""
    if path is not None:
        _format(path)


def _format(path: Path) -> Callable[[Prediction], bytes]:
    made = FORMATS.get(path.suffix.lower())
    if made is None:
        raise UsageError(f"--export {path}: its name must end with one of {', '.join(FORMATS)}")
    return made


def _course(prediction: Prediction) -> StepCourse:
    course = step_course(prediction)
    if course is None:
        raise UsageError("--export: the prediction does not have its trace")
    return course


def _snapshot(prediction: Prediction) -> bytes:
    snapshot = torch_snapshot(prediction)
    if snapshot is None:
        raise UsageError("--export: the prediction does not have its trace")
    return pickle.dumps(snapshot, protocol=4)  # the newest that the viewer's own reader knows


def _csv(prediction: Prediction) -> bytes:
    """Memory over the step: a line for each point of the report's chart."""
    course = _course(prediction)
    by_kind = [[0] * (len(course.points) + 1) for _ in KINDS]
    for row in course.rows:
        by_kind[row.kind][row.first] += row.size_bytes
        by_kind[row.kind][row.end] -= row.size_bytes
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ("event", "step", "phase", "op", "module", *(f"{kind} bytes" for kind in KINDS), "allocated bytes",
         "reserved bytes", "on the card bytes")
    )  # fmt: skip
    levels = [0] * len(KINDS)
    for number, point in enumerate(course.points):
        levels = [level + column[number] for level, column in zip(levels, by_kind, strict=True)]
        writer.writerow(
            (point.event, course.step + 1, point.phase, point.op, point.module, *levels, point.allocated_bytes,
             point.reserved_bytes, point.reserved_bytes + prediction.context_bytes)
        )  # fmt: skip
    return text.getvalue().encode()


def _markdown(prediction: Prediction) -> bytes:
    """For a pull request or a wiki."""
    mark = "✅" if prediction.fits else "❌"
    total = prediction.account.device_bytes
    lines = [
        f"### {mark} {_cell(verdict(prediction))}",
        "",
        say("Peak at {place}.", place=_cell(place(prediction.account.moment))),
    ]
    if prediction.time is not None:
        said = headline(prediction.time)
        lines.append(f"{said[0].upper()}{said[1:]}{say('.')}")
    lines += ["", sentence("| at the peak | size | share |"), "|---|---:|---:|"]
    lines += [
        f"| {name(part.name)} | {format_size(part.size_bytes)} | {percent(part.size_bytes, total)} |"
        for part in largest(prediction.account.parts)
    ]
    lines += [sentence(f"| **on the card** | **{format_gib(total)}** | of {format_gib(prediction.limit_bytes)} |"), ""]
    lines += [sentence("| module | size |"), "|---|---:|"]
    lines += [
        f"| {'&emsp;' * row.depth}{_cell(row.label)} | {format_size(row.size_bytes)} |"
        for row in module_rows(prediction.account.modules, most=_MOST_MODULES)
    ]
    if prediction.notes:
        lines += ["", f"<details><summary>{say('Assumed and not known')}</summary>", ""]
        lines += [
            f"- {_cell(sentence(note.topic))}: {_cell(sentence(note.text))}" for note in prediction.notes[:_MOST_NOTES]
        ]
        lines += ["", "</details>"]
    return ("\n".join(lines) + "\n").encode()


def _png(prediction: Prediction) -> bytes:
    """The chart as pixels, at twice its size so that it is sharp."""
    try:
        import resvg_py
    except ModuleNotFoundError:
        raise UsageError("--export: .png needs resvg: pip install 'vramcast[png]'; or write an .svg") from None
    return bytes(resvg_py.svg_to_bytes(svg_string=step_svg(_course(prediction), prediction), zoom=2))


def _cell(text: str) -> str:
    """Text that means nothing to Markdown."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in text).replace("\n", " ")


FORMATS: dict[str, Callable[[Prediction], bytes]] = {
    ".pickle": _snapshot,
    ".csv": _csv,
    ".md": _markdown,
    ".svg": lambda prediction: step_svg(_course(prediction), prediction).encode(),
    ".png": _png,
}
