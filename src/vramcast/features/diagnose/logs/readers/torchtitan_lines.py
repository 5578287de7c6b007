"""torchtitan's lines, with or without their colours."""

from __future__ import annotations

import re

from vramcast.features.diagnose.logs import sample as q
from vramcast.features.diagnose.logs.readers.pairs import add_clock
from vramcast.features.diagnose.logs.sample import Sample
from vramcast.features.diagnose.logs.vocabulary import number, read, whole

NAME = "torchtitan"
READS = "step, memory, tps (tokens/s of one GPU), mfu, time of the line; batch, sequence length and total steps"

_STEP = re.compile(r"(?P<validate>validate )?step:\s*(?P<step>\d+)\s+loss:")
_PAIR = re.compile(r"\b(memory|tps|mfu):\s*([\d.,]+)\s*([A-Za-z%]*)")
_START = re.compile(
    r"local batch size (?P<batch>\d+), global batch size (?P<global_batch>\d+), "
    r"sequence length (?P<sequence>\d+), total steps (?P<total_steps>\d+)"
)


def parse(line: str) -> Sample | None:
    if "local batch size" in line:
        start = _START.search(line)
        if start is not None:
            return Sample(values={name: float(text) for name, text in start.groupdict().items() if name in q.SETTINGS})
    if "tps:" not in line:
        return None
    step = _STEP.search(line)
    if step is None or step["validate"]:
        return None
    sample = Sample(step=whole(number(step["step"])), throughput_of="one")
    for key, text, unit in _PAIR.findall(line):
        value = number(text)
        known = read(key, value, unit) if value is not None else None
        if known is not None:
            sample.values[known[0]] = known[1]
    add_clock(sample, line)
    return sample
