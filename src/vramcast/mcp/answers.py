"""What each tool answers: a few lines of text, and the document that the verb prints with --json."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from vramcast.base.access import check_code, check_file
from vramcast.base.errors import UsageError
from vramcast.jobs.load import LoadedJob, load_job
from vramcast.jobs.readers import Request
from vramcast.mcp.inputs import JobInput, SetupInput
from vramcast.report.console import emit
from vramcast.report.page import Page, print_page

Progress = Callable[[str], None]

_LARGE = (("prediction", "account", "timeline"), ("prediction", "account", "modules"), ("stages",), ("parameters",))
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    document: dict[str, Any]


def answer_predict(
    root: Path, job: JobInput, gpu: str | None, limit: str | None, steps: int, detail: str, progress: Progress
) -> Answer:
    from vramcast.prediction.predict import predict
    from vramcast.report.terminal import peak_lines
    from vramcast.report.wording import verdict

    result = predict(_load(root, job), gpu, limit, steps, progress=progress)
    parts = sorted(result.account.parts, key=lambda part: -part.size_bytes)
    lines = [
        verdict(result.prediction),
        *peak_lines(result.prediction),
        "at the peak: " + ", ".join(f"{part.name} {part.size_bytes / 2**30:.2f} GiB" for part in parts[:6]),
        *(f"note ({note.topic}): {note.text}" for note in result.notes),
    ]
    document = result.to_document()
    return Answer("\n".join(lines), document if detail == "full" else _shortened(document))


def answer_check(
    root: Path, job: JobInput, gpu: str | None, memory: str | None, device: int | None, progress: Progress
) -> Answer:
    from vramcast.features.check.check import check
    from vramcast.report.check import check_page

    result = check(_load(root, job), gpu, memory, device, progress=progress)
    return Answer(_text(check_page(result.verdict)), result.to_document())


def answer_advise(
    root: Path, job: JobInput, gpu: str | None, memory: str | None, device: int | None, keep: Iterable[str],
    objective: str, progress: Progress,
) -> Answer:  # fmt: skip
    from vramcast.features.advise.advise import advise
    from vramcast.report.advice import advice_page

    result = advise(_load(root, job), gpu, memory, device, keep=keep, objective=objective, progress=progress)
    return Answer(_text(advice_page(result.advice)), result.to_document())


def answer_whatif(
    root: Path, job: JobInput, gpu: str | None, memory: str | None, keep: Iterable[str], progress: Progress
) -> Answer:
    from vramcast.features.what_if.what_if import what_if
    from vramcast.report.outcomes import what_if_document, what_if_page

    result = what_if(_load(root, job), gpu, memory, keep=keep, progress=progress)
    return Answer(_text(what_if_page(result)), what_if_document(result))


def answer_diagnose(
    root: Path, logs: Sequence[str], job: JobInput | None, gpu: str | None, setup: SetupInput, progress: Progress
) -> Answer:
    from vramcast.features.diagnose.diagnose import diagnose
    from vramcast.report.diagnosis import diagnosis_page

    loaded = None if job is None else _load(root, job)
    result = diagnose([_log(root, name) for name in logs], loaded, gpu, **setup.model_dump(), progress=progress)
    return Answer(_text(diagnosis_page(result.diagnosis)), result.to_document())


def answer_gpus(name: str | None, here: bool, progress: Progress) -> Answer:
    from vramcast.gpus import all_gpus, find_gpu
    from vramcast.gpus.state import survey
    from vramcast.report.cards import print_card, print_cards
    from vramcast.report.local_cards import local_document, local_page

    if here and name is not None:
        raise UsageError("name and here: a known card, or those of this machine; leave one out")
    if here:
        result = survey()
        return Answer(_text(local_page(result)), local_document(result))
    specs = all_gpus() if name is None else (find_gpu(name),)
    document = {"format": "vramcast-gpus", "version": 1, "gpus": [spec.to_dict() for spec in specs]}
    if name is None:
        return Answer(_printed(lambda console: print_cards(specs, console)), document)
    return Answer(_printed(lambda console: print_card(specs[0], console)), document)


def _load(root: Path, job: JobInput) -> LoadedJob:
    """Relative paths are meant from the root."""
    request = Request(
        model=None if job.model is None else _place(root, job.model),
        parts=tuple(_place(root, part) for part in job.parts),
        arguments=tuple(job.arguments),
    )
    return load_job(_place(root, job.path), job.overrides(), request)


def _place(root: Path, name: str) -> str:
    module, _, attribute = name.rpartition(":")
    if module and attribute.replace(".", "").isidentifier() and not os.path.exists(root / name):
        check_code(f"'{name}'")
        return str(root / module) + f":{attribute}" if module.endswith(".py") else name
    path = root / name
    check_file(path if os.path.exists(path) else path.parent / path.name.partition("#")[0])
    return str(path)


def _log(root: Path, name: str) -> Path:
    """Standard input, which "-" means to the verb, is here what the client speaks on."""
    path = root / name
    check_file(path)
    return path


def _shortened(document: dict[str, Any]) -> dict[str, Any]:
    """The document without the account of every module, stage and moment."""
    short = {**document, "prediction": {**document["prediction"]}}
    short["prediction"]["account"] = {**document["prediction"]["account"]}
    for *path, last in _LARGE:
        place = short
        for key in path:
            place = place[key]
        value = place.pop(last)
        if last == "parameters":
            place[last] = {key: value[key] for key in value if key != "children"}
    return short


def _text(page: Page) -> str:
    return _printed(lambda console: print_page(page, console))


def _printed(render: Callable[[Console], None]) -> str:
    buffer = io.StringIO()
    emit(render, buffer, _WIDTH)
    return buffer.getvalue().strip()
