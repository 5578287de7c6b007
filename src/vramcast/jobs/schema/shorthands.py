"""What may be written shorter than it is: a word for a section, one for a list of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BeforeValidator


def short(field: str, kind: type, section: Any) -> BeforeValidator:
    """Let `precision: bf16` stand for `precision: {preset: bf16}`."""
    return BeforeValidator(_expander(field, kind), json_schema_input_type=section | kind)


def one_or_many(field: str, section: Any) -> BeforeValidator:
    """Let `optimizer: adamw` stand for `optimizer: [{name: adamw}]`."""
    expand = _expander(field, str)

    def to_list(value: Any) -> Any:
        return [expand(item) for item in value] if isinstance(value, list) else [expand(value)]

    return BeforeValidator(to_list, json_schema_input_type=str | section | list[str | section])


def _expander(field: str, kind: type) -> Callable[[Any], Any]:
    return lambda value: {field: value} if type(value) is kind else value


def offload_words(value: Any) -> Any:
    """`offload: activations`, `offload: [optimizer, model]`."""
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return value
    fields: dict[str, Any] = {}
    for word in words:
        fields |= {"components": word} if word in ("model", "sequential") else {word: True}
    return fields
