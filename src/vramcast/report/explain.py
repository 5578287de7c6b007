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


def explanation_page(explanation: Explanation, job: str) -> Page:
    page: list[Line | Grid] = [Line(f"{_names(explanation.modules)} in {job}", "heading")]
    if explanation.inputs or explanation.output is not None:
        page.append(Line(_shapes(explanation)))
    if explanation.parameters:
        page += [_parameters(explanation.parameters), *_state_line(explanation.parameters)]
    for title, what in (
        ("kept until the backward pass", explanation.stays),
        ("made again in the backward pass, inside one checkpointed block", explanation.inside),
        ("for a moment, the most at once", explanation.momentary),
        ("workspaces of libraries, the most at once", explanation.workspaces),
    ):
        if what.items:
            page.append(_tensors(title, what))
    page.append(_at_peak(explanation))
    page.append(Line(f"the peak of the run is at {place(explanation.peak)}", "aside"))
    return page


def _names(modules: Sequence[str]) -> str:
    shown = ", ".join(modules[:_MOST_NAMES])
    return shown if len(modules) <= _MOST_NAMES else f"{shown} and {len(modules) - _MOST_NAMES} more, together"


def _shapes(explanation: Explanation) -> str:
    given = " and ".join(_dimensions(shape) for shape in explanation.inputs) or "nothing"
    output = "" if explanation.output is None else f", returns {_dimensions(explanation.output)}"
    alike = " (the first of them)" if len(explanation.modules) > 1 else ""
    return f"takes {given}{output}{alike}"


def _dimensions(shape: Sequence[int]) -> str:
    return " × ".join(f"{size}" for size in shape) or "a single number"


def _parameters(parameters: Sequence[ParameterTensor]) -> Grid:
    rows = []
    folded: dict[tuple[str, tuple[int, ...], str, bool, int], list[ParameterTensor]] = {}
    for tensor in parameters:
        name = ".".join("*" if part.isdigit() else part for part in tensor.name.split("."))
        folded.setdefault((name, tensor.shape, tensor.dtype, tensor.trained, tensor.optimizer_bytes), []).append(tensor)
    for (name, *_), group in folded.items():
        for tensors in [group] if len(group) > 2 else [[tensor] for tensor in group]:
            first = tensors[0]
            count = len(tensors)
            shape = Shape.parse(f"{first.dtype}{list(first.shape)}")
            sizes = [sum(getattr(tensor, field) for tensor in tensors) for field in _FIELDS]
            label = name if count > 1 else first.name
            rows.append((label, _product(shape, first.weights_bytes, count), *(_size(size) for size in sizes)))
    shown, rest = rows[:_MOST_LINES], rows[_MOST_LINES:]
    if rest:
        shown.append((f"and {len(rest)} more lines (--json lists all)", "", "", "", ""))
    totals = [sum(getattr(tensor, field) for tensor in parameters) for field in _FIELDS]
    count = sum(tensor.count for tensor in parameters)
    total = ("total", f"{count:,} numbers", *(_size(size) for size in totals))
    return Grid(("parameters", "", "weights", "gradients", "optimizer"), tuple(shown), 2, total)


_FIELDS = ("weights_bytes", "gradients_bytes", "optimizer_bytes")


def _state_line(parameters: Sequence[ParameterTensor]) -> list[Line]:
    names = list(dict.fromkeys(name for tensor in parameters for name in tensor.state))
    frozen = sum(not tensor.trained for tensor in parameters)
    remarks = [f"the optimizer keeps {', '.join(names)} for each weight"] if names else []
    if frozen:
        remarks.append(f"{frozen} of {len(parameters)} are frozen: no gradient and no optimizer state")
    return [Line("; ".join(remarks), "aside")] if remarks else []


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


def _at_peak(explanation: Explanation) -> Grid:
    rows = [(kind, _size(size)) for kind, size in explanation.at_peak.by_kind().items()]
    if explanation.rounding_bytes:
        rows.append(("rounding to whole blocks", _size(explanation.rounding_bytes)))
    total = explanation.at_peak.total_bytes + explanation.rounding_bytes
    return Grid(("in it at the peak of the run", "bytes"), tuple(rows), 1, ("total", _size(total)))


def _size(size_bytes: int) -> str:
    return format_size(size_bytes) if size_bytes else "–"


def explanation_document(explanation: Explanation, job: str, gpu: str) -> dict[str, Any]:
    return {
        "format": EXPLANATION_FORMAT,
        "version": EXPLANATION_VERSION,
        "job": job,
        "gpu": gpu,
        "modules": list(explanation.modules),
        "input_shapes": [list(shape) for shape in explanation.inputs],
        "output_shape": None if explanation.output is None else list(explanation.output),
        "parameters": [
            {
                "name": tensor.name, "count": tensor.count, "shape": list(tensor.shape), "dtype": tensor.dtype,
                "trained": tensor.trained, "weights_bytes": tensor.weights_bytes,
                "gradients_bytes": tensor.gradients_bytes, "optimizer_bytes": tensor.optimizer_bytes,
                "optimizer_state": list(tensor.state),
            }
            for tensor in explanation.parameters
        ],
        "stays": _sum_document(explanation.stays),
        "inside": _sum_document(explanation.inside),
        "momentary": _sum_document(explanation.momentary),
        "workspaces": _sum_document(explanation.workspaces),
        "at_peak": _sum_document(explanation.at_peak) | {
            "by_kind_bytes": explanation.at_peak.by_kind(),
            "rounding_bytes": explanation.rounding_bytes,
            "place": place(explanation.peak),
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
