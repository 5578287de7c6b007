"""YAML with the line of every key, and with limits: no tags, no cycles, no aliases that multiply."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from vramcast.base.errors import UsageError
from vramcast.jobs.text_files import read_text

Key = tuple[str | int, ...]

_LARGEST_TEXT = 400_000
_MOST_VALUES = 20_000
"""After aliases are written out: a "YAML bomb" of ten lines stands for billions."""
_DEEPEST = 40
_LONGEST_NUMBER = 40


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML 1.1 reads 1e-4 as text; everybody means the number. Values are counted while they are read, for that is what
    takes time."""

    def __init__(self, text: str, where: str) -> None:
        super().__init__(text)
        self._where = where
        self._values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._values += 1
        if self._values > _MOST_VALUES:
            raise UsageError(f"{self._where}: more than {_MOST_VALUES:,} values are too many for a config")
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        self._check_length(node)
        value: int = super().construct_yaml_int(node)
        return value

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        self._check_length(node)
        value: float = super().construct_yaml_float(node)
        return value

    def _check_length(self, node: yaml.ScalarNode) -> None:
        if len(node.value) > _LONGEST_NUMBER:
            line = node.start_mark.line + 1
            raise UsageError(f"{self._where}:{line}: a number of {len(node.value):,} signs is too long")


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_yaml(path: Path) -> tuple[Any, dict[Key, int]]:
    """The document, and the line of every key."""
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, where: str) -> tuple[Any, dict[Key, int]]:
    if len(text) > _LARGEST_TEXT:
        raise UsageError(f"{where} is too large for YAML: more than {_LARGEST_TEXT // 1000} kB")
    try:
        loader = _Loader(text, where)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        _check_size(node, where)
        lines: dict[Key, int] = {}
        _collect_lines(node, (), lines, where)
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise UsageError(f"{where}{line}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UsageError(f"{where}: nested too deeply") from None
    except (ValueError, OverflowError, TypeError) as error:
        raise UsageError(f"{where}: not YAML: {error}") from None


def _check_size(root: yaml.Node, where: str) -> None:
    known: dict[int, int] = {}

    def size(node: yaml.Node, above: tuple[int, ...]) -> int:
        if id(node) in above:
            raise UsageError(f"{where}:{node.start_mark.line + 1}: an alias that contains itself")
        if len(above) > _DEEPEST:
            raise UsageError(f"{where}:{node.start_mark.line + 1}: nested too deeply")
        if id(node) in known:
            return known[id(node)]
        below = (*above, id(node))
        total = 1
        if isinstance(node, yaml.MappingNode):
            total += sum(size(key, below) + size(value, below) for key, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            total += sum(size(value, below) for value in node.value)
        if total > _MOST_VALUES:
            line = node.start_mark.line + 1
            raise UsageError(
                f"{where}:{line}: aliases here stand for more than {_MOST_VALUES:,} values; write them out"
            )
        known[id(node)] = total
        return total

    size(root, ())


def _collect_lines(node: yaml.Node, key: Key, lines: dict[Key, int], where: str) -> None:
    lines.setdefault(key, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode):
                raise UsageError(f"{where}:{name.start_mark.line + 1}: a key is a name, not a list or mapping")
            if name.value in seen and name.value != "<<":
                raise UsageError(f"{where}:{name.start_mark.line + 1}: {name.value}: this key is there twice")
            seen.add(name.value)
            below = (*key, name.value)
            lines[below] = name.start_mark.line + 1
            _collect_lines(value, below, lines, where)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            _collect_lines(value, (*key, i), lines, where)
