"""Run one of Megatron-LM's training programs with made-up texts: the program that `vramcast run` is given.

    vramcast run ... megatron_script.py MEGATRON TRANSFORMER_ENGINE VERSION PROGRAM [arguments of the program]

The two folders are checkouts. Only what needs files is replaced: datasets are made of zeros, and the kernels of
TransformerEngine, Apex and flash-attn are stand-ins.
"""

from __future__ import annotations

import runpy
import sys
import typing
from pathlib import Path
from typing import Any

import torch
import typing_extensions

ROOT = Path(__file__).parents[2]


class Zeros(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Samples with the fields, shapes and types of Megatron's own datasets."""

    def __init__(self, config: Any, kind: str) -> None:
        self.length = config.sequence_length
        self.mask = bool(getattr(config, "create_attention_mask", True))
        self.decoder = getattr(config, "sequence_length_decoder", None)
        self.encoder = getattr(config, "sequence_length_encoder", None)
        self.kind = kind

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        return getattr(self, f"_{self.kind}")()

    def _gpt(self) -> dict[str, Any]:
        ids = torch.zeros(self.length, dtype=torch.int64)
        sample = {"tokens": ids, "labels": ids, "loss_mask": torch.ones(self.length), "position_ids": ids}
        if self.mask:
            sample["attention_mask"] = torch.zeros((1, self.length, self.length), dtype=torch.bool)
        return sample

    def _bert(self) -> dict[str, Any]:
        ids = torch.zeros(self.length, dtype=torch.int64)
        names = ("text", "types", "labels", "loss_mask", "padding_mask")
        return {**dict.fromkeys(names, ids), "is_random": 0, "truncated": 0}

    def _t5(self) -> dict[str, Any]:
        source = torch.zeros(self.encoder or self.length, dtype=torch.int64)
        target = torch.zeros(self.decoder or self.length, dtype=torch.int64)
        return {
            "text_enc": source,
            "text_dec": target,
            "labels": target,
            "loss_mask": target,
            "truncated": 0,
            "enc_mask": torch.ones(len(source), dtype=torch.int64),
            "dec_mask": torch.ones(len(target), dtype=torch.int64),
        }


def use_zeros(kind: str) -> None:
    from megatron.core.datasets import blended_megatron_dataset_builder as builder

    def build(self: Any) -> list[Any]:
        return [Zeros(self.config, kind) for _ in range(3)]

    builder.BlendedMegatronDatasetBuilder.build = build


def balance_experts() -> None:
    """Every expert gets as many tokens: what a router chooses is unknown where nothing is computed."""
    from megatron.core.transformer.moe.router import TopKRouter

    route = TopKRouter.forward

    def forward(self: Any, *args: Any, **rest: Any) -> Any:
        probabilities, chosen = route(self, *args, **rest)
        if chosen is not None and not self.config.moe_pad_expert_input_to_capacity:
            tokens, experts = chosen.shape
            first = torch.arange(tokens, device="cpu").unsqueeze(1) * self.topk
            places = (first + torch.arange(self.topk, device="cpu")) % experts
            even = torch.zeros((tokens, experts), dtype=torch.bool, device="cpu").scatter_(1, places, True)
            chosen = even.to(chosen.device)
        return probabilities, chosen

    TopKRouter.forward = forward


def let_t5_be() -> None:
    """Its dataset asks for tokens that only a real tokenizer has."""
    from megatron.core.datasets import t5_dataset

    t5_dataset.T5MaskedWordPieceDatasetConfig.__post_init__ = lambda self: None


def trust_other_ranks() -> None:
    """Megatron-FSDP compares where the shards of all ranks begin and end, and takes random states from the first rank;
    here the others say what this one says."""
    try:
        from megatron.core.distributed.fsdp import mcore_fsdp_adapter as adapter
        from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer as buffers
    except ImportError:  # revisions without it
        return
    buffers.validate_uneven_dtensor = lambda tensor: None
    adapter.FullyShardedDataParallel.sync_rng_states_across_tp_group = lambda self: None


def stay_on_any_core() -> None:
    """It asks the driver which cores of the host are nearest to the card."""
    from megatron.core.pipeline_parallel import utils

    utils.set_ideal_affinity_for_current_gpu = lambda: None


def main() -> None:
    sys.path[:0] = [str(ROOT)]
    from lab.published.engine_kernels.install import install

    typing.override = typing_extensions.override  # its newer revisions are written for Python 3.12
    megatron, engine, version, program, *arguments = sys.argv[1:]
    sys.path[:0] = [megatron]
    if engine != "-":
        install(Path(engine), version)
    use_zeros(next((kind for kind in ("bert", "t5") if kind in program), "gpt"))
    balance_experts()
    let_t5_be()
    trust_other_ranks()
    stay_on_any_core()
    sys.argv = [program, *arguments]
    runpy.run_path(str(Path(megatron) / program), run_name="__main__")


if __name__ == "__main__":
    main()
