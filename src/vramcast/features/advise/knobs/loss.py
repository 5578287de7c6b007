"""The cross-entropy of a language model piece by piece, so that the logits of a whole batch never lie on the card."""

from __future__ import annotations

from vramcast.features.advise.language_models import is_causal, single_language_model, vocabulary
from vramcast.features.advise.option import Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job

NAME = "loss"

_CHUNKS = 8
_HEAD_AGAIN = 1.05
"""The head runs once more; it is a few percent of a model's arithmetic."""


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    part = single_language_model(job)
    if part is None or not is_causal(part):
        return []
    if len(job.loss) > 1 or any(term.kind != "model" or term.chunks > 1 for term in job.loss):
        return []
    width = vocabulary(part)
    fields = job.loss[0].model_dump(exclude_unset=True) if job.loss else {}
    return [
        Option(
            knob=NAME,
            text=f"cross-entropy in {_CHUNKS} pieces, as Liger Kernel does",
            changes={"loss": {"kind": "model", **fields, "chunks": _CHUNKS}},
            cost="the head is computed twice; the loss must be written so, or by a library such as Liger Kernel",
            time=_HEAD_AGAIN,
            thinned=None if width is None else (width, 1 / _CHUNKS),
        )
    ]
