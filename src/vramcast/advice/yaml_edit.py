"""Change single values in the text of a YAML file; comments and the rest stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


def edit_yaml(text: str, changes: Mapping[str, Any]) -> str:
    """`changes`: dotted key → value. The caller reads the result back, and so finds out where this was too simple."""
    for key, value in changes.items():
        text = _edit(text, key.split("."), value)
    return text


def one_line(value: Any) -> str:
    """The value as YAML that can stand after a key."""
    dumped: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
    return dumped.removesuffix("\n").removesuffix("\n...")


def _edit(text: str, path: list[str], value: Any) -> str:
    place = yaml.compose(text, Loader=yaml.SafeLoader)
    for depth, name in enumerate(path):
        if not isinstance(place, yaml.MappingNode):
            return text  # a short form such as `gpus: 4`
        inside = next((node for key, node in place.value if key.value == name), None)
        if inside is None:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value}
            return _insert(text, place, name, value, top=depth == 0)
        place = inside
    return _replace(text, place, value)


def _replace(text: str, node: yaml.Node, value: Any) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    old = text[start:end]
    block = isinstance(node, yaml.CollectionNode) and not node.flow_style
    if not block:
        return text[:start] + one_line(value) + text[end:]
    kept = old[len(old.rstrip()) :]
    before = text[:start].rstrip()  # back to the colon of its key
    return f"{before} {one_line(value)}{kept}{text[end:]}"


def _insert(text: str, mapping: yaml.MappingNode, name: str, value: Any, *, top: bool) -> str:
    entry = f"{name}: {one_line(value)}"
    if mapping.flow_style:
        at = mapping.end_mark.index - 1
        return text[:at].rstrip() + (", " if mapping.value else "") + entry + text[at:]
    if top:
        return f"{text.rstrip()}\n{entry}\n"
    first = mapping.value[0][0].start_mark
    last_line = text.count("\n", 0, mapping.value[-1][1].end_mark.index)
    node = mapping.value[-1][1]
    if not (isinstance(node, yaml.CollectionNode) and not node.flow_style):
        last_line += 1
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    lines.insert(last_line, " " * first.column + entry + "\n")
    return "".join(lines)
