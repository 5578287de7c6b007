"""From plain data (YAML, JSON, a dict) to a Job, or to one message that names the file, the key and the cure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from vramcast.base.errors import UsageError
from vramcast.jobs.references import nearest
from vramcast.jobs.schema import Job

Key = tuple[str | int, ...]
LineOf = Callable[[Key], int | None]
_MOST_SHOWN = 5


def make_job(data: Any, where: str, line_of: LineOf = lambda key: None) -> Job:
    """Check `data`; `where` names the file in messages and `line_of` gives the line of a key, where it has one."""
    if not isinstance(data, Mapping):
        raise UsageError(
            f"{where}: a job is a mapping of keys to values, e.g. components: ...; this is {in_words(data)}"
        )
    try:
        return Job.model_validate(dict(data))
    except ValidationError as error:
        raise UsageError("\n".join(_messages(error.errors(include_url=False), where, line_of))) from None


def check_part(data: Mapping[str, Any], where: str, line_of: LineOf = lambda key: None) -> None:
    """Check keys and values of a part of a job; whether they agree is known when all parts are together."""
    try:
        Job.model_validate(dict(data))
    except ValidationError as error:
        wrong = [
            detail for detail in error.errors(include_url=False) if detail["type"] not in ("missing", "value_error")
        ]
        if wrong:
            raise UsageError("\n".join(_messages(wrong, where, line_of))) from None


def _messages(errors: list[ErrorDetails], where: str, line_of: LineOf) -> Iterator[str]:
    problems = [(line_of(key), key, detail) for key, detail in _by_key(errors).items()]
    problems.sort(key=lambda problem: problem[0] or 0)
    for line, key, detail in problems[:_MOST_SHOWN]:
        place = where if line is None else f"{where}:{line}"
        name = ".".join(str(part) for part in key)
        yield f"{place}: {name}: {_explain(detail, key)}" if name else f"{place}: {_explain(detail, key)}"
    if len(problems) > _MOST_SHOWN:
        yield f"{where}: and {len(problems) - _MOST_SHOWN} more"


def _by_key(errors: list[ErrorDetails]) -> dict[Key, ErrorDetails]:
    """One message for a key, although each branch of a union complains."""
    seen: dict[Key, ErrorDetails] = {}
    for detail in errors:
        *above, last = detail["loc"] or ("",)
        is_theirs = detail["type"] == "extra_forbidden" or _is_key(last)
        key = (*(part for part in above if _is_key(part)), *((last,) if is_theirs and last != "" else ()))
        seen.setdefault(key, detail)
    return seen


def _is_key(part: str | int) -> bool:
    """pydantic also puts the branches of unions into the location; they are no keys of the user's."""
    return isinstance(part, int) or not (part in ("int", "str", "float", "bool") or "[" in part)


def _explain(detail: ErrorDetails, key: Key) -> str:
    given, context = detail.get("input"), detail.get("ctx", {})
    match detail["type"]:
        case "extra_forbidden":
            known = _fields_at(key[:-1])
            return f"there is no such key{nearest(str(detail['loc'][-1]), known)}"
        case "missing":
            return "this key is needed"
        case "literal_error":
            wanted = context.get("expected", "")
            close = nearest(str(given), [word.strip("' ") for word in wanted.replace(" or ", ", ").split(",")])
            return f"{_shown(given)} is not one of {wanted}" + (close if close.startswith(";") else "")
        case "int_type" | "int_from_float" | "int_parsing":
            return f"a whole number is needed, not {in_words(given)}"
        case "float_type":
            return f"a number is needed, not {in_words(given)}"
        case "bool_type":
            return f"true or false is needed, not {in_words(given)}"
        case "string_type":
            return f"text is needed, not {in_words(given)}"
        case "list_type":
            return f"a list is needed, e.g. [a, b], not {in_words(given)}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"keys and values are needed ({', '.join(_fields_at(key)) or 'name: value'}), not {in_words(given)}"
        case "greater_than_equal":
            return f"{_shown(given)} is too small: at least {context['ge']:,} is needed"
        case "greater_than":
            return f"{_shown(given)} is too small: more than {context['gt']:,} is needed"
        case "less_than_equal":
            return f"{_shown(given)} is too large: at most {context['le']:,} is possible"
        case "less_than":
            return f"{_shown(given)} is too large: it must be below {context['lt']:,}"
        case "value_error":
            return str(context.get("error", detail["msg"]))
        case _:
            return detail["msg"][:1].lower() + detail["msg"][1:]


def in_words(value: Any) -> str:
    """What somebody wrote, in words."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return _shown(value)


def _shown(value: Any) -> str:
    text = f"{value:,}" if type(value) is int and abs(value) < 10**20 else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _fields_at(key: Key) -> list[str]:
    """The keys that may stand below `key`."""
    model: type[BaseModel] | None = Job
    for part in key:
        if model is None:
            return []
        field = model.model_fields.get(str(part))
        if field is not None:
            model = _section_in(field.annotation)
        # else: a name of the user's own, or an index: what lies below is of the same kind
    return list(model.model_fields) if model is not None else []


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        section = _section_in(inner)
        if section is not None:
            return section
    return None
