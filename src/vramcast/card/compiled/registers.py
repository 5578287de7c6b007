"""How many registers a reduction's thread uses, estimated from the source of its Triton kernel.

A thread keeps what one turn of a loop loads, each value in its own width, and what it adds up, in 32 bits. Where the
length of a row does not let it load four values at a time, each has an address of its own. Read off 50 reductions of
compiled models on an H200: which of them use more registers than are free comes out right for 48.
"""

from __future__ import annotations

import re

_OTHERS = 11
"""Indices, pointers and masks."""
_WIDTH = {
    "*fp64": 2.0, "*i64": 2.0, "*fp32": 1.0, "*i32": 1.0, "*bf16": 0.5, "*fp16": 0.5, "*i16": 0.5, "*i1": 0.25,
    "*i8": 0.25, "*u8": 0.25,
}  # fmt: skip
"""Registers for a value of such an argument."""
_ADDRESS = 2
_SIGNATURE = re.compile(r"'(\w+)': '(\*\w+)'")
_LENGTH = re.compile(r"\br0?_?numel = (\d+)")
_LOAD = re.compile(r"\w+ = tl\.load\((\w+) \+ (.*?), ")
_STORE = re.compile(r"tl\.store\((\w+) \+ (.*?), ")
_ADDED_UP = re.compile(r"_?tmp\w* = tl\.where\(.*mask")


def registers_of_a_thread(source: str, x_block: int, r_block: int, threads: int) -> float:
    _, _, body = source.partition("@triton.jit")
    widths = {name: _WIDTH.get(kind, 1.0) for name, kind in _SIGNATURE.findall(source)}
    length = _LENGTH.search(body)
    once = length is not None and int(length[1]) <= r_block
    one_by_one = length is not None and int(length[1]) % 4 != 0
    elements = x_block * r_block / threads

    def held(access: re.Match[str], *, is_store: bool) -> float:
        if "tmp" not in access[2] and "r" not in access[2]:
            return 0
        if "tmp" not in access[2] and "x" not in access[2]:  # a row that all share
            return widths.get(access[1], 1.0) * r_block / threads
        if one_by_one:
            return (1 + _ADDRESS) * elements
        return 0 if is_store else widths.get(access[1], 1.0) * elements

    most = 0.0
    for lines in _loops(body):
        kept = sum(held(load, is_store=False) for line in lines if (load := _LOAD.match(line)))
        kept += sum(held(store, is_store=True) for line in lines if (store := _STORE.match(line)))
        if not (once and any("welford" in line for line in lines)):  # a loop of one turn carries nothing on
            kept += elements * sum(1 for line in lines if _ADDED_UP.match(line))
        most = max(most, kept)
    return _OTHERS + most


def _loops(body: str) -> list[list[str]]:
    """The lines inside each loop over what is reduced."""
    loops: list[list[str]] = []
    indent: int | None = None
    for line in body.splitlines():
        depth = len(line) - len(line.lstrip())
        if line.lstrip().startswith("for r"):
            loops.append([])
            indent = depth
        elif line.strip() and indent is not None:
            if depth <= indent:
                indent = None
            else:
                loops[-1].append(line.strip())
    return loops
