"""Rows of the report that Lightning's simple profiler prints: mean seconds of each action."""

from __future__ import annotations

import re

from vramcast.features.diagnose.logs import sample as q
from vramcast.features.diagnose.logs.sample import Sample
from vramcast.features.diagnose.logs.vocabulary import number

NAME = "Lightning profiler"
READS = "run_training_batch, training_step, backward, optimizer_step (less what its closure runs), loading, saving"

_ROW = re.compile(
    r"^\|\s+(?P<action>\S.*?)\s+\|\s+(?P<mean>[\d.e+-]+)\s+\|\s+(?P<calls>\d+)\s+\|\s+[\d.e+-]+\s+\|\s+[\d.e+-]+\s+\|$"
)
OPTIMIZER_WITH_CLOSURE = "optimizer_step_with_closure"
TRAINING_BATCH = "training_batch_seconds"
_ACTIONS = (
    (re.compile(r"^run_training_batch$"), TRAINING_BATCH),
    (re.compile(r"train_dataloader_next$"), q.phase_key(q.DATA)),
    (re.compile(r"Strategy\.batch_to_device$"), q.phase_key(q.TRANSFER)),
    (re.compile(r"Strategy\.training_step$"), q.phase_key(q.FORWARD)),
    (re.compile(r"Strategy\.backward$"), q.phase_key(q.BACKWARD)),
    (re.compile(r"^\[LightningModule\]\w+\.optimizer_step$"), OPTIMIZER_WITH_CLOSURE),
)


def parse(line: str) -> Sample | None:
    if not line.startswith("|") or line.count("|") < 6:
        return None
    row = _ROW.match(line)
    if row is None:
        return None
    quantity = next((name for pattern, name in _ACTIONS if pattern.search(row["action"])), None)
    mean = number(row["mean"])
    if quantity is None or mean is None or mean < 0:
        return None
    return Sample(values={quantity: mean})
