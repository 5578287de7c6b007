"""Change single values in the text of a YAML or JSON file; comments and the rest stay as they are.

JSON is nearly YAML, so one parser tells where every value of either lies. The caller reads the result back, and so
finds out where this was too simple.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from vramcast.jobs.readers.documents import without_comments
from vramcast.jobs.yaml_file import Key

Dump = Callable[[Any], str]


def edit_yaml(text: str, edits: Mapping[Key, Any]) -> str:
    for key, value in edits.items():
        text = _edit(text, _compose(text), key, value, one_line)
    return text


def edit_json(text: str, edits: Mapping[Key, Any]) -> str:
    """Edit JSON, also with // comments."""
    for key, value in edits.items():
        text = _edit(text, _compose(without_comments(text).replace("\t", " ")), key, value, json.dumps)
    return text


def one_line(value: Any) -> str:
    """The value as YAML that can stand after a key."""
    dumped: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
    return dumped.removesuffix("\n").removesuffix("\n...")


def _compose(text: str) -> yaml.Node:
    return yaml.compose(text, Loader=yaml.SafeLoader)


def _edit(text: str, place: yaml.Node, path: Sequence[str | int], value: Any, dump: Dump) -> str:
    for depth, name in enumerate(path):
        if not isinstance(place, yaml.MappingNode):
            return text  # a short form such as `gpus: 4`
        inside = next((node for key, node in place.value if key.value == name), None)
        if inside is None:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value}
            name_text = dump(name) if dump is json.dumps else str(name)
            if place.flow_style:
                return _insert_flow(text, place, f"{name_text}: {dump(value)}")
            return _insert_block(text, place, f"{name_text}: {dump(value)}", top=depth == 0)
        place = inside
    return _replace(text, place, dump(value))


def _replace(text: str, node: yaml.Node, new: str) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    old = text[start:end]
    if not (isinstance(node, yaml.CollectionNode) and not node.flow_style):
        return text[:start] + ("" if old else " ") + new + text[end:]
    kept = old[len(old.rstrip()) :]
    before = text[:start].rstrip()  # back to the colon of its key
    return f"{before} {new}{kept}{text[end:]}"


def _insert_flow(text: str, mapping: yaml.MappingNode, entry: str) -> str:
    """Insert after the last entry, on a line of its own where the others have one, with the comma where theirs are."""
    if not mapping.value:
        at = mapping.end_mark.index - 1
        return text[:at].rstrip() + entry + text[at:]
    key, value = mapping.value[-1]
    end = value.end_mark.index
    line_start = text.rfind("\n", 0, key.start_mark.index) + 1
    before = text[line_start : key.start_mark.index]
    if before.strip() not in ("", ",") or line_start < mapping.start_mark.index:
        return f"{text[:end]}, {entry}{text[end:]}"
    line_end = text.find("\n", end)
    rest = text[end:line_end]
    if before.strip():  # commas lead
        return f"{text[:end]}{rest}\n{before}{entry}{text[line_end:]}"
    comma = "" if rest.lstrip().startswith(",") else ","
    return f"{text[:end]}{comma}{rest}\n{before}{entry}{text[line_end:]}"


def _insert_block(text: str, mapping: yaml.MappingNode, entry: str, *, top: bool) -> str:
    if top:
        return f"{text.rstrip()}\n{entry}\n"
    first = mapping.value[0][0].start_mark
    node = mapping.value[-1][1]
    last_line = text.count("\n", 0, node.end_mark.index)
    if not (isinstance(node, yaml.CollectionNode) and not node.flow_style):
        last_line += 1
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    lines.insert(last_line, " " * first.column + entry + "\n")
    return "".join(lines)
