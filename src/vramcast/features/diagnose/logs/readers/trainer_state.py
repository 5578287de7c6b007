"""trainer_state.json, which Hugging Face's Trainer writes into each checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.base.errors import UsageError
from vramcast.base.input_files import parse_json
from vramcast.features.diagnose.logs import sample as q
from vramcast.features.diagnose.logs.readers.json_lines import from_document
from vramcast.features.diagnose.logs.sample import Sample
from vramcast.features.diagnose.logs.text import Source

NAME = "trainer_state.json"
READS = "log_history as the lines of the Trainer; max_steps, train_batch_size"

_LARGEST_BYTES = 1 << 28


def recognises(head: bytes) -> bool:
    return head.lstrip().startswith(b"{") and b'"log_history"' in head


def samples(source: Source) -> Iterator[Sample]:
    parts = []
    size = 0
    while part := source.stream.read(1 << 20):
        parts.append(part)
        size += len(part)
        if size > _LARGEST_BYTES:
            raise UsageError(f"{source.name}: larger than {_LARGEST_BYTES >> 20} MiB, which no trainer_state.json is")
    document = parse_json(b"".join(parts).decode("utf-8-sig", errors="replace"), source.name)
    if not isinstance(document, dict) or not isinstance(document.get("log_history"), list):
        raise UsageError(f"{source.name}: log_history is not a list")
    settings = {q.BATCH: document.get("train_batch_size"), q.TOTAL_STEPS: document.get("max_steps")}
    yield Sample(
        values={name: float(value) for name, value in settings.items() if isinstance(value, int) and 0 < value < 10**15}
    )
    for entry in document["log_history"]:
        sample = from_document(entry) if isinstance(entry, dict) else None
        if sample is not None:
            if q.RUN_SAMPLES_PER_SECOND in sample.values:
                sample.throughput_of = "all"
            yield sample
