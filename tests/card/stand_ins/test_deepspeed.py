"""DeepSpeed's optimizers where their kernels were not compiled."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vramcast

MIB = 2**20
BUILDER = """
class OpBuilder:
    def __init__(self, name):
        self.name = name

    def load(self, verbose=False):
        return f"{self.name}, compiled"
"""


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """DeepSpeed, as far as it is asked."""
    folder = tmp_path / "deepspeed" / "ops" / "op_builder"
    folder.mkdir(parents=True)
    for path in (folder, folder.parent, folder.parent.parent):
        (path / "__init__.py").write_text("")
    (folder / "builder.py").write_text(BUILDER)
    monkeypatch.syspath_prepend(tmp_path)
    before = {name for name in sys.modules if name.partition(".")[0] == "deepspeed"}
    assert not before
    yield lambda name: importlib.import_module("deepspeed.ops.op_builder.builder").OpBuilder(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "deepspeed"]:
        del sys.modules[name]


def test_its_optimizers_update_in_place(builder: Any) -> None:
    with vramcast.virtual_gpu("h200") as card:
        gradient, parameter, first, second = (torch.zeros(512, 512, device="cuda") for _ in range(4))
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        overflow = torch.zeros(1, dtype=torch.int, device="cuda")
        lists = [[gradient], [parameter], [first], [second]]
        builder("fused_adam").load().multi_tensor_adam(65536, overflow, lists, 1e-3, 0.9, 0.999, 1e-8, 1, 1, 1, 0.0)
        builder("fused_lion").load().multi_tensor_lion(65536, overflow, lists[:3], 1e-3, 0.9, 0.99, 1, 0.0)
        assert torch.cuda.max_memory_allocated() - before == 512  # the overflow flag
    assert {"deepspeed.multi_tensor_update"} <= set(card.trace().ops)
    assert [n for n in card.trace().notes if n.topic == "packages" and "fused_adam is not compiled" in n.text]


def test_lamb_sums_norms_beside_the_update(builder: Any) -> None:
    with vramcast.virtual_gpu("h200"):
        parameter, first, second, gradient = (torch.zeros(512, 512, device="cuda") for _ in range(4))
        copy = torch.empty(0, device="cuda")
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        coefficient = builder("fused_lamb").load().lamb(parameter, copy, first, second, gradient, *[0.0] * 11)
        assert coefficient.shape == (1,)
        assert torch.cuda.memory_allocated() - before == 512
        assert torch.cuda.max_memory_allocated() - before == 2 * 512 * 4 + 512


def test_what_it_compiles_otherwise_is_left_to_it(builder: Any) -> None:
    with vramcast.virtual_gpu("h200"):
        assert builder("transformer").load() == "transformer, compiled"
    assert builder("fused_adam").load() == "fused_adam, compiled"
