"""A result on one screen: at most 25 lines of 80 columns, the verdict first. Wider terminals are used to their width.

A screen is lines that already have their final width, so that their number is known: `compose` shortens what is too
long, section by section. `--full` prints the tables instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rich.cells import cell_len
from rich.console import Console

from vramcast.base.language import name, say, sentence
from vramcast.base.units import GIB
from vramcast.memory import Account, ModuleNode, Part
from vramcast.memory.account import largest
from vramcast.report.grid import padded, shortened_apart
from vramcast.report.page import Line, print_page
from vramcast.report.wording import percent
from vramcast.report.wrapping import ending, wrap

MOST_LINES = 25
USUAL_WIDTH = 80
_SIDE_BY_SIDE = 140
"""From this width on, kinds and modules stand side by side."""
_GAP = "    "
_SMALLEST_SHARE = 0.01
_MERGE_FROM = 3
_KINDS, _MODULES = 7, 5
_LONGEST_BAR = 48


@dataclass(frozen=True, slots=True)
class Section:
    lines: tuple[Line, ...]
    least: int = 1
    """Lines that stay however short the screen is."""
    blank_before: bool = False
    in_fewer: Callable[[int], Sequence[Line]] | None = None
    """The same in so many lines, for what must still add up when it is shortened; without it the last lines go."""


def compose(sections: Iterable[Section], most: int = MOST_LINES) -> list[Line]:
    """One below the other; where they are too long, blank lines go first, then the end of the longest that can give."""
    shown = [section for section in sections if section.lines]
    lines = [list(section.lines) for section in shown]
    blanks = sum(section.blank_before for section in shown)

    def too_many() -> int:
        return sum(map(len, lines)) + blanks - most

    while too_many() > 0:
        can_give = [i for i, section in enumerate(shown) if len(lines[i]) > section.least]
        if not can_give:
            blanks = max(0, blanks - too_many())
            break
        longest = max(can_give, key=lambda i: len(lines[i]) - shown[i].least)
        in_fewer = shown[longest].in_fewer
        if in_fewer is None:
            _cut(lines[longest])
        else:
            lines[longest] = list(in_fewer(len(lines[longest]) - 1))
    found: list[Line] = []
    for section, kept in zip(shown, lines, strict=True):
        if section.blank_before and found and blanks > 0:
            found.append(Line(""))
            blanks -= 1
        found += kept
    return found[:most]


def _cut(lines: list[Line]) -> None:
    """Take the last line away; a sentence that goes on in it ends in an ellipsis."""
    dropped = lines.pop()
    if dropped.continues and lines and not lines[-1].text.endswith("…"):
        kept, word = lines[-1].text, dropped.text.split(maxsplit=1)[0]
        if cell_len(kept) + 2 > USUAL_WIDTH:
            kept, _, word = kept.rpartition(" ")
        lines[-1] = replace(lines[-1], text=ending(kept, word, USUAL_WIDTH))


def print_screen(lines: Sequence[Line], console: Console) -> None:
    print_page(lines, console)


def wrapped(text: str, width: int, tone: str = "", most: int = 2, indent: str = "") -> list[Line]:
    """Words stay whole; what does not fit into `most` lines ends in an ellipsis."""
    spoken = text if tone == "code" else sentence(text)
    return [Line(line, tone, continues=i > 0) for i, line in enumerate(wrap(spoken, width, most, indent))]


def memory(account: Account, width: int) -> list[Section]:
    """What takes the memory: a bar for each kind, and the biggest modules."""
    kinds, modules = _kind_rows(account), biggest_modules(account.modules)
    if width < _SIDE_BY_SIDE:
        in_fewer = partial(_kinds_in_fewer, kinds, account.device_bytes, width)
        return [
            Section(tuple(_kinds(kinds, account.device_bytes, width)), least=3, blank_before=True, in_fewer=in_fewer),
            Section(tuple(_modules(modules, account, width)), least=2),
        ]
    half = (width - len(_GAP)) // 2
    left = [line.text for line in _kinds(kinds, account.device_bytes, half)]
    right = [line.text for line in _modules(modules, account, half)]
    height = max(len(left), len(right))
    left += [""] * (height - len(left))
    right += [""] * (height - len(right))
    rows = (f"{padded(a, half)}{_GAP}{b}".rstrip() for a, b in zip(left, right, strict=True))
    return [Section(tuple(Line(row, "code") for row in rows), least=4, blank_before=True)]


def _kind_rows(account: Account) -> list[Part]:
    """The large kinds, the others as one line, so that the lines add up to what is on the device."""
    parts = largest(account.parts)
    shown = [part for part in parts if part.size_bytes >= _SMALLEST_SHARE * account.device_bytes][:_KINDS]
    rest = sum(part.size_bytes for part in parts) - sum(part.size_bytes for part in shown)
    return [*shown, Part(say("everything else"), rest)] if rest else shown


def _kinds(parts: Sequence[Part], total_bytes: int, width: int) -> list[Line]:
    label = max(cell_len(name(part.name)) for part in parts)
    room = min(_LONGEST_BAR, width - label - 24)
    most = max(part.size_bytes for part in parts)
    lines = []
    for part in parts:
        bar = "█" * max(1, round(room * part.size_bytes / most)) if room > 0 else ""
        size, share = f"{part.size_bytes / GIB:.2f}", percent(part.size_bytes, total_bytes)
        lines.append(Line(f"{padded(name(part.name), label)}  {size:>8} GiB {share:>7}  {bar}", "code"))
    return lines


def _kinds_in_fewer(parts: Sequence[Part], total_bytes: int, width: int, most: int) -> list[Line]:
    """The smaller kinds as one line, which names them in place of a bar."""
    shown, folded = parts[: most - 1], parts[most - 1 :]
    rest = Part(say("everything else"), sum(part.size_bytes for part in folded))
    *lines, last = _kinds([*shown, rest], total_bytes, width)
    figures = last.text.rstrip("█")
    names = ", ".join(name(part.name) for part in folded if part.name != rest.name)
    return [*lines, *wrapped(f"{figures}{names}", width, "code", most=1)]


@dataclass(frozen=True, slots=True)
class BigModule:
    label: str
    size_bytes: int
    largest_kind: str


def biggest_modules(root: ModuleNode, most: int = _MODULES) -> list[BigModule]:
    """The largest is opened as long as its parts still go on the screen; equal numbered layers are one line."""
    least = _SMALLEST_SHARE * root.total_bytes
    rows = _own(root, say("(no module)"), least)
    closed = _folded(root.children)
    while open_ones := [one for one in closed if len(one) == 1 and one[0].children]:
        node = max(open_ones, key=_total)[0]
        parts = [part for part in _folded(node.children) if _total(part) >= least]
        own = _own(node, say("{module} itself", module=node.name), least)
        if not parts or len(rows) + len(closed) - 1 + len(parts) + len(own) > most:
            break
        closed = [one for one in closed if one != (node,)] + parts
        rows += own
    rows += [BigModule(_label(one), _total(one), _kind(one)) for one in closed if _total(one) >= least]
    return sorted(rows, key=lambda row: -row.size_bytes)[:most]


def _own(node: ModuleNode, label: str, least: float) -> list[BigModule]:
    """What belongs to the module and to none inside it, where that is much."""
    own = dict(node.by_kind_bytes)
    for child in node.children:
        for kind, size in child.by_kind_bytes.items():
            own[kind] -= size
    return [BigModule(label, node.self_bytes, _largest(own))] if node.self_bytes >= max(1, least) else []


def _folded(nodes: Sequence[ModuleNode]) -> list[tuple[ModuleNode, ...]]:
    numbered = tuple(node for node in nodes if node.name.rpartition(".")[2].isdecimal())
    if len(numbered) < _MERGE_FROM:
        return [(node,) for node in nodes]
    return [numbered, *((node,) for node in nodes if node not in numbered)]


def _total(nodes: Sequence[ModuleNode]) -> int:
    return sum(node.total_bytes for node in nodes)


def _label(nodes: Sequence[ModuleNode]) -> str:
    if len(nodes) == 1:
        return nodes[0].name
    numbers = sorted(int(node.name.rpartition(".")[2]) for node in nodes)
    parent = nodes[0].name.rpartition(".")[0]
    return f"{parent}.{numbers[0]} … {numbers[-1]} ({len(nodes)} ×)".lstrip(".")


def _kind(nodes: Sequence[ModuleNode]) -> str:
    kinds: dict[str, int] = {}
    for node in nodes:
        for kind, size in node.by_kind_bytes.items():
            kinds[kind] = kinds.get(kind, 0) + size
    return _largest(kinds)


def _largest(kinds: Mapping[str, int]) -> str:
    return max(kinds, key=lambda kind: kinds[kind], default="")


def _modules(rows: Sequence[BigModule], account: Account, width: int) -> list[Line]:
    if not rows:
        return []
    mostly = {row.largest_kind: say("mostly {kind}", kind=name(row.largest_kind)) for row in rows}
    room = max(12, width - max(map(cell_len, mostly.values())) - 24)
    label = min(room, max(cell_len(row.label) for row in rows))
    lines = []
    for row, text in zip(rows, shortened_apart([row.label for row in rows], label), strict=True):
        share = percent(row.size_bytes, account.device_bytes)
        shown = padded(text, label)
        size = f"{row.size_bytes / GIB:.2f}"
        lines.append(Line(f"{shown}  {size:>8} GiB {share:>7}  {mostly[row.largest_kind]}".rstrip(), "code"))
    return lines


def text_of(lines: Sequence[Line]) -> str:
    return "\n".join(line.text for line in lines)
