"""Run torchtitan's trainer with made-up texts: the program that is run on the virtual card.

titan_script.py CHECKOUT [options of torchtitan]
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch

VOCABULARY = 128256
"""Llama 3's tokenizer."""
WIDTHS = {"405b": 16384, "70b": 8192, "8b": 4096}


class Texts:
    """A data loader of zeros, with the state that a checkpoint would ask for."""

    def __init__(self, batch: int, length: int, in_dictionary: bool) -> None:
        self.shape = (batch, length)
        self.in_dictionary = in_dictionary

    def __iter__(self) -> Iterator[Any]:
        while True:
            ids = torch.zeros(self.shape, dtype=torch.int64)
            yield ({"input": ids} if self.in_dictionary else ids), ids.clone()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Tokenizer:
    n_words = VOCABULARY
    eos_id = 0

    def get_vocab_size(self) -> int:
        return VOCABULARY


def use_zeros_of_2024() -> None:
    """Revisions whose trainer is `train.py` in the root."""
    from torchao.float8.config import ScalingType
    from torchtitan import datasets

    ScalingType.DELAYED = object()  # asked for and not used; torchao has dropped it since
    torch.backends.cuda.enable_cudnn_sdp(False)  # torch took flash attention before it up to 2.8, as these runs had
    datasets.build_tokenizer = lambda *args: Tokenizer()
    datasets.build_hf_data_loader = lambda name, path, tokenizer, batch, length, *rest: Texts(batch, length, False)


def use_zeros() -> None:
    """Revisions in which a model's parts are named in its `TrainSpec`."""
    import dataclasses

    from torchtitan.protocols import train_spec

    find = train_spec.get_train_spec

    def get_train_spec(name: str) -> Any:
        return dataclasses.replace(
            find(name),
            build_tokenizer_fn=lambda config: Tokenizer(),
            build_dataloader_fn=lambda job_config, **rest: Texts(
                job_config.training.local_batch_size, job_config.training.seq_len, True
            ),
        )

    train_spec.get_train_spec = get_train_spec


def know_what_stages_send(arguments: list[str]) -> None:
    """Stages of a pipeline tell each other the shape of what they send: one sample, its tokens shared by tensor and
    context parallelism, in bf16."""
    if not any(argument.endswith("pipeline_parallel_degree") for argument in arguments):
        return

    def option(name: str) -> int:
        places = [place for place, argument in enumerate(arguments) if argument.endswith(name)]
        return int(arguments[places[0] + 1]) if places else 1

    tokens = option("seq_len") // (option("tensor_parallel_degree") * option("context_parallel_degree"))
    width = next(width for size, width in WIDTHS.items() if size in " ".join(arguments))

    def recv_object_list(objects: list[Any], *rest: Any, **settings: Any) -> int:
        objects[0] = (torch.empty(1, tokens, width, dtype=torch.bfloat16, device="meta"),)
        return 0

    torch.distributed.recv_object_list = recv_object_list


def main() -> None:
    checkout, *arguments = sys.argv[1:]
    sys.path[:0] = [checkout]
    program = Path(checkout) / "train.py"
    if not program.exists():
        program = Path(checkout) / "torchtitan" / "train.py"
    sys.argv = [str(program), *arguments]  # read when the config's module is imported
    for name in ("torch.utils.tensorboard", "datasets", "datasets.distributed", "tiktoken", "tiktoken.load", "wandb"):
        sys.modules[name] = MagicMock()  # logs and texts, of which none is kept or read
    if program.parent.name == "torchtitan":
        use_zeros()
    else:
        use_zeros_of_2024()
    know_what_stages_send(arguments)
    runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    main()
