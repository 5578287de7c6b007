"""The kinds of value that fields of a job share: names, sizes, dtypes, references, patterns."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from vramcast.base.errors import VramcastError
from vramcast.jobs.references import CONVERSIONS

LARGEST_SIZE = 10_000_000
"""The largest size of one dimension: a batch, length or width above this is a typo, not a training run."""

COMMON_SIZES = ("batch", "frames", "height", "width", "sequence")
"""Sizes that the tool has options for; a job may have others of its own."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SCENARIO = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_SIZE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FACTORY = re.compile(r"([^:\s]+|[^:\n]+\.py):[A-Za-z_][A-Za-z0-9_.]*")
_REFERENCE = re.compile(
    rf"[A-Za-z_][A-Za-z0-9_-]*(\.([A-Za-z0-9][A-Za-z0-9_]*|{'|'.join(re.escape(name) for name in CONVERSIONS)}))*"
)
_ARGUMENT = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9][A-Za-z0-9_]*)?")

_DTYPE_SPELLINGS = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float64": "fp64",
    "double": "fp64",
    "long": "int64",
    "int": "int32",
}


class Section(BaseModel):
    """Base of every part of a job: exact types, no unknown keys, no change after it was checked."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)

    @property
    def changed_fields(self) -> list[str]:
        """The fields that differ from their default."""
        fields = type(self).model_fields
        return [
            name
            for name, field in fields.items()
            if getattr(self, name) != field.get_default(call_default_factory=True)
        ]


def _dtype(value: Any) -> Any:
    return _DTYPE_SPELLINGS.get(value.removeprefix("torch."), value) if isinstance(value, str) else value


def _matching(pattern: re.Pattern[str], wanted: str) -> Any:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"{value!r} is not {wanted}")
        return value

    return AfterValidator(check)


def _expression(value: int | str) -> int | str:
    from vramcast.jobs.expressions import check

    if isinstance(value, str):
        try:
            check(value)
        except VramcastError as error:
            raise ValueError(str(error)) from None
    elif not 0 < value <= LARGEST_SIZE:
        raise ValueError(f"a size is a whole number from 1 to {LARGEST_SIZE:,}, not {value:,}")
    return value


Size = Annotated[int, Field(ge=1, le=LARGEST_SIZE)]
Count = Annotated[int, Field(ge=1, le=65_536)]
Name = Annotated[str, _matching(_NAME, "a name: letters, digits, _ and -, beginning with a letter")]
ScenarioName = Annotated[str, _matching(_SCENARIO, "a name: letters, digits, _ and -")]
SizeName = Annotated[str, _matching(_SIZE_NAME, "the name of a size: letters, digits and _, beginning with a letter")]
FactoryName = Annotated[
    str, _matching(_FACTORY, 'the name of a Python function: write "package.module:function" or "file.py:function"')
]
Reference = Annotated[
    str,
    _matching(
        _REFERENCE,
        'a reference: write an input or component, and what to take from it by name or number, like "latents", '
        f'"text.last_hidden_state" or "vae.latent_dist.sample()"; of calls there is {", ".join(CONVERSIONS)}',
    ),
]
ArgumentName = Annotated[str, _matching(_ARGUMENT, 'the name of an argument, like "hidden_states", "batch.0"')]
Expression = Annotated[int | str, AfterValidator(_expression)]

_FLOATS = Literal["fp32", "bf16", "fp16", "fp64"]
_ALL = Literal["fp32", "bf16", "fp16", "fp64", "int64", "int32", "int16", "int8", "uint8", "bool"]
FloatDtype = Annotated[_FLOATS, BeforeValidator(_dtype, json_schema_input_type=_FLOATS)]
Dtype = Annotated[_ALL, BeforeValidator(_dtype, json_schema_input_type=_ALL)]
Arguments = dict[str, Any]
