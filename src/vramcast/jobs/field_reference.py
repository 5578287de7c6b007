"""The fields of a job as Markdown, made from the schema: docs/jobs.md holds them."""

from __future__ import annotations

import re
import types
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from vramcast.jobs import schema
from vramcast.jobs.schema import Job

BEGIN = "<!-- fields: made from src/vramcast/jobs/schema by `make job-docs` -->"
END = "<!-- end of fields -->"

_ORDER = (
    Job,
    schema.Component,
    schema.Lora,
    schema.Input,
    schema.Diffusion,
    schema.Loss,
    schema.Precision,
    schema.Optimizer,
    schema.Ema,
    schema.Checkpointing,
    schema.Offload,
    schema.Evaluation,
    schema.Gpus,
    schema.Dataset,
    schema.Target,
    schema.Step,
    schema.Script,
)
_WORDS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    type(None): "nothing",
    Any: "anything",
}


def reference() -> str:
    return "\n".join([BEGIN, "", *(_section(section) for section in _ORDER), END])


def with_reference(page: str) -> str:
    """`page` with the part between the two marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + reference() + after


def _section(section: type[BaseModel]) -> str:
    lines = [f"### {section.__name__}", "", _one_line(section.__doc__ or ""), ""]
    lines += ["| field | takes | left out | meaning |", "|---|---|---|---|"]
    for name, field in section.model_fields.items():
        cells = (f"`{name}`", _type(field.annotation), _default(field), _one_line(field.description or ""))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _type(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    if hasattr(annotation, "__metadata__"):
        return _type(annotation.__origin__)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(part) for part in inner if part is not type(None))
    if origin is list:
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return f"name: {_type(inner[1])}"
    return _WORDS.get(annotation, str(annotation))


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "needed"
    if isinstance(value, BaseModel):
        fields = value.model_dump(exclude_unset=True)
        return f"`{next(iter(fields.values()))}`" if fields else "its defaults"
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        return f"`{next(iter(value[0].model_dump().values()))}`"
    if value in (None, [], {}):
        return ""
    return f"`{re.sub('True', 'true', re.sub('False', 'false', str(value)))}`"
