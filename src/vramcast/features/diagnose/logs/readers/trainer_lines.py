"""What Hugging Face's Trainer prints: dict lines while it trains, its settings before, its summary after."""

from __future__ import annotations

import re

from vramcast.features.diagnose.logs import sample as q
from vramcast.features.diagnose.logs.readers.pairs import sample_of
from vramcast.features.diagnose.logs.sample import Sample
from vramcast.features.diagnose.logs.vocabulary import number

NAME = "Hugging Face Trainer"
READS = (
    "train_runtime, train_samples_per_second, train_steps_per_second, eval_runtime; batch size per device, total batch "
    "size, accumulation and total steps; what callbacks add to its dicts"
)

# Values are bare in transformers 4 and quoted in 5.
_PAIR = re.compile(r"'([\w/.\- ()]+)': '?([-+]?[\d.,]+(?:[eE][-+]?\d+)?)'?(?=[,}])")
_SETTING = re.compile(
    r"^(?:.*[\]\-:])?\s*(Instantaneous batch size per device|Total train batch size|Gradient Accumulation steps|"
    r"Total optimization steps)[^=]*= ([\d,]+)\s*$"
)


def parse(line: str) -> Sample | None:
    line = line.strip()
    if line.startswith("{'") and line.endswith("}"):
        pairs = [(key, value, "") for key, text in _PAIR.findall(line) if (value := number(text)) is not None]
        sample = sample_of(pairs, line)
        if sample is None:
            return Sample() if "'loss'" in line else None
        if q.RUN_SAMPLES_PER_SECOND in sample.values:
            # Trainer counts the samples of all processes.
            sample.throughput_of = "all"
        return sample
    if " = " in line:
        setting = _SETTING.match(line)
        value = number(setting[2]) if setting is not None else None
        if setting is not None and value is not None:
            return sample_of([(setting[1], value, "")])
    return None
