"""Run a recipe of torchtune's with made-up texts and fresh weights: the program that is run on the virtual card.

tune_script.py CHECKOUT PROGRAM [options of the recipe]
"""

from __future__ import annotations

import runpy
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
SAMPLE = 128
"""Tokens of one text; how long they are changes a mask's values, not its size."""


def tokenizer(path: str, max_seq_len: int) -> Any:
    return SimpleNamespace(pad_id=0, max_seq_len=max_seq_len)


class Packed(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Rows filled with texts, as torchtune's `PackedDataset` gives them."""

    def __init__(self, tokens: Any, packed: bool) -> None:
        self.length = tokens.max_seq_len

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.zeros(self.length, dtype=torch.int64)
        lengths = torch.full((self.length // SAMPLE,), SAMPLE, dtype=torch.int64)
        return {"tokens": ids, "labels": ids, "input_pos": torch.arange(self.length) % SAMPLE, "seq_lens": lengths}


class Checkpointer:
    """Weights are not here: the model keeps those it was made with."""

    def __init__(self, **settings: Any) -> None: ...

    def load_checkpoint(self) -> dict[str, Any]:
        return {"model": {}}

    def save_checkpoint(self, *args: Any, **settings: Any) -> None: ...


class Logger:
    def __init__(self, **settings: Any) -> None: ...

    def log_config(self, settings: Any) -> None: ...

    def log_dict(self, *args: Any, **settings: Any) -> None: ...

    def close(self) -> None: ...


class Absent(ModuleType):
    """Names in it are empty classes, or functions that decorate with nothing: torchtune asks whether tensors are of
    torchao's classes, and none is."""

    __version__ = "0.6"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, type(name, (), {}) if name[0].isupper() else lambda *args: lambda function: function)
        return getattr(self, name)


class NotUsed(MetaPathFinder, Loader):
    """Packages that are imported and not used: the torchao of that day (a newer one has its classes elsewhere), and the
    one that would download texts."""

    packages = ("torchao", "datasets")

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


def main() -> None:
    checkout, program, *arguments = sys.argv[1:]
    sys.path[:0] = [checkout, str(ROOT)]
    sys.meta_path.insert(0, NotUsed())
    torch.nn.Module.load_state_dict = lambda self, state, *args, **settings: None  # type: ignore[method-assign]
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
