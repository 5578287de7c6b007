"""A run on the virtual card beside the allocator's events of the same run on an H200."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

import vramcast
from lab.measuring.recorded import factory_of
from vramcast.base.factories import load_factory
from vramcast.card.libraries.cudnn_installed import open_cudnn

EVENTS = Path(__file__).parents[2] / "lab" / "data" / "records" / "events"


@pytest.mark.skipif(open_cudnn() is None, reason="sizes of workspaces are cuDNN's")
@pytest.mark.skipif(not torch.__version__.startswith("2.11"), reason="recorded with torch 2.11")
def test_a_recurrent_network_in_bf16_reserves_what_it_did() -> None:
    """It depends on the order of casts and of gradients, and on a copy in batch norm's backward."""
    record = json.loads(gzip.decompress((EVENTS / "d7-47-deepspeech.json.gz").read_bytes()))
    with vramcast.virtual_gpu("h200"):
        torch.manual_seed(record["seed"])
        step = load_factory(factory_of(record))(**record["args"])
        for _ in record["step_starts"]:
            step()
        stats = torch.cuda.memory_stats()
    assert stats["reserved_bytes.all.peak"] == record["peak_reserved_bytes"]
    assert stats["allocated_bytes.all.peak"] == record["peak_allocated_bytes"]
