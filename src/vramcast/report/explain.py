"""The arithmetic of a module as tables: shape × bytes = size, × how many, and the sum; and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramcast.base.units import format_size
from vramcast.features.explain.modules import Explanation, Item, Sum
from vramcast.memory.parameters import ParameterTensor
from vramcast.memory.shapes import Shape
from vramcast.report.page import Grid, Line, Page
from vramcast.report.wording import place

EXPLANATION_FORMAT = "vramcast-explanation"
EXPLANATION_VERSION = 1
_MOST_LINES = 24
_MOST_NAMES = 3


def explanation_page(found: Explanation, job: str) -> Page:
    page: list[Line | Grid] = [Line(f"{_names(found.modules)} in {job}", "heading")]
    if found.inputs or found.output is not None:
        page.append(Line(_shapes(found)))
    if found.parameters:
        page += [_parameters(found.parameters), *_state_line(found.parameters)]
    for title, what in (
        ("kept until the backward pass", found.stays),
        ("made again in the backward pass, inside one checkpointed block", found.inside),
        ("for a moment, the most at once", found.momentary),
        ("workspaces of libraries, the most at once", found.workspaces),
    ):
        if what.items:
            page.append(_tensors(title, what))
    page.append(_at_peak(found))
    page.append(Line(f"the peak of the run is at {place(found.peak)}", "aside"))
    return page


def _names(modules: Sequence[str]) -> str:
    shown = ", ".join(modules[:_MOST_NAMES])
    return shown if len(modules) <= _MOST_NAMES else f"{shown} and {len(modules) - _MOST_NAMES} more, together"


def _shapes(found: Explanation) -> str:
    given = " and ".join(_dimensions(shape) for shape in found.inputs) or "nothing"
    output = "" if found.output is None else f", returns {_dimensions(found.output)}"
    alike = " (the first of them)" if len(found.modules) > 1 else ""
    return f"takes {given}{output}{alike}"


def _dimensions(shape: Sequence[int]) -> str:
    return " × ".join(f"{size}" for size in shape) or "a single number"


def _parameters(parameters: Sequence[ParameterTensor]) -> Grid:
    rows = []
    folded: dict[tuple[str, tuple[int, ...], str, bool, int], list[ParameterTensor]] = {}
    for one in parameters:
        name = ".".join("*" if part.isdigit() else part for part in one.name.split("."))
        folded.setdefault((name, one.shape, one.dtype, one.trained, one.optimizer_bytes), []).append(one)
    for (name, *_), group in folded.items():
        for tensors in [group] if len(group) > 2 else [[one] for one in group]:
            first = tensors[0]
            count = len(tensors)
            shape = Shape.parse(f"{first.dtype}{list(first.shape)}")
            sizes = [sum(getattr(one, field) for one in tensors) for field in _FIELDS]
            label = name if count > 1 else first.name
            rows.append((label, _product(shape, first.weights_bytes, count), *(_size(size) for size in sizes)))
    shown, rest = rows[:_MOST_LINES], rows[_MOST_LINES:]
    if rest:
        shown.append((f"and {len(rest)} more lines (--json lists all)", "", "", "", ""))
    totals = [sum(getattr(one, field) for one in parameters) for field in _FIELDS]
    count = sum(one.count for one in parameters)
    total = ("total", f"{count:,} numbers", *(_size(size) for size in totals))
    return Grid(("parameters", "", "weights", "gradients", "optimizer"), tuple(shown), 2, total)


_FIELDS = ("weights_bytes", "gradients_bytes", "optimizer_bytes")


def _state_line(parameters: Sequence[ParameterTensor]) -> list[Line]:
    names = list(dict.fromkeys(name for one in parameters for name in one.state))
    frozen = sum(not one.trained for one in parameters)
    said = [f"the optimizer keeps {', '.join(names)} for each weight"] if names else []
    if frozen:
        said.append(f"{frozen} of {len(parameters)} are frozen: no gradient and no optimizer state")
    return [Line("; ".join(said), "aside")] if said else []


def _tensors(title: str, what: Sum) -> Grid:
    items = what.items
    if len(items) > _MOST_LINES:
        kept = set(sorted(range(len(items)), key=lambda i: -items[i].total_bytes)[:_MOST_LINES])
        items = tuple(item for i, item in enumerate(items) if i in kept)
    rows = [_item(item) for item in items]
    left = len(what.items) - len(items)
    if left:
        size = what.total_bytes - sum(item.total_bytes for item in items)
        rows.append((f"and {left} smaller (--json lists all)", "", "", _size(size)))
    return Grid((title, "made by", "", "bytes"), tuple(rows), 3, ("total", "", "", _size(what.total_bytes)))


def _item(item: Item) -> tuple[str, ...]:
    return (item.module or "(itself)", item.op.removeprefix("aten."), _product(item.shape, item.each_bytes, item.count),
            _size(item.total_bytes))  # fmt: skip


def _product(shape: Shape | None, each_bytes: int, count: int) -> str:
    """768 × 2304 × 4 B (fp32), × 12"""
    if shape is None:
        text = f"{each_bytes:,} B"
    else:
        factors = " × ".join(str(size) for size in shape.dimensions) or "1"
        text = f"{factors} × {shape.element_bytes} B ({shape.dtype})"
        if shape.size_bytes != each_bytes:
            text += f", in {each_bytes:,} B"
    return f"{text}, {count} times" if count > 1 else text


def _at_peak(found: Explanation) -> Grid:
    rows = [(kind, _size(size)) for kind, size in found.at_peak.by_kind().items()]
    if found.rounding_bytes:
        rows.append(("rounding to whole blocks", _size(found.rounding_bytes)))
    total = found.at_peak.total_bytes + found.rounding_bytes
    return Grid(("in it at the peak of the run", "bytes"), tuple(rows), 1, ("total", _size(total)))


def _size(size_bytes: int) -> str:
    return format_size(size_bytes) if size_bytes else "–"


def explanation_document(found: Explanation, job: str, gpu: str) -> dict[str, Any]:
    return {
        "format": EXPLANATION_FORMAT,
        "version": EXPLANATION_VERSION,
        "job": job,
        "gpu": gpu,
        "modules": list(found.modules),
        "input_shapes": [list(shape) for shape in found.inputs],
        "output_shape": None if found.output is None else list(found.output),
        "parameters": [
            {
                "name": one.name, "count": one.count, "shape": list(one.shape), "dtype": one.dtype,
                "trained": one.trained, "weights_bytes": one.weights_bytes, "gradients_bytes": one.gradients_bytes,
                "optimizer_bytes": one.optimizer_bytes, "optimizer_state": list(one.state),
            }
            for one in found.parameters
        ],
        "stays": _sum_document(found.stays),
        "inside": _sum_document(found.inside),
        "momentary": _sum_document(found.momentary),
        "workspaces": _sum_document(found.workspaces),
        "at_peak": _sum_document(found.at_peak) | {
            "by_kind_bytes": found.at_peak.by_kind(),
            "rounding_bytes": found.rounding_bytes,
            "place": place(found.peak),
        },
    }  # fmt: skip


def _sum_document(what: Sum) -> dict[str, Any]:
    return {
        "total_bytes": what.total_bytes,
        "tensors": [
            {
                "module": item.module, "op": item.op, "kind": item.kind, "count": item.count,
                "shape": None if item.shape is None else list(item.shape.dimensions),
                "dtype": None if item.shape is None else item.shape.dtype,
                "each_bytes": item.each_bytes, "total_bytes": item.total_bytes,
            }
            for item in what.items
        ],
    }  # fmt: skip
