"""Cards and data."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vramcast.jobs.fields import Count, Section, Size


class Gpus(Section):
    """How many cards, and what each of them holds. `gpus: 4` alone is DDP on four."""

    count: Count = 1
    """Number of GPUs; the prediction is for one of them."""
    strategy: Literal["none", "ddp", "fsdp", "deepspeed"] | None = None
    """Left out: ddp with more than one GPU."""
    global_batch: Size | None = None
    """The batch over all GPUs: each gets its share, instead of sizes.batch."""
    bucket_cap_mb: Annotated[float, Field(gt=0, le=100_000, strict=False)] = 25
    """DDP: size of a gradient bucket."""
    gradient_as_bucket_view: bool = False
    """DDP: gradients lie in the buckets, instead of a copy beside them."""
    find_unused_parameters: bool = False
    """DDP: look for parameters that got no gradient."""
    static_graph: bool = False
    """DDP: the graph is the same in every step."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    """deepspeed: 1 shards optimizer state, 2 also gradients, 3 also weights."""
    reshard_after_forward: bool = True
    """fsdp: give the gathered weights back after the forward pass (FULL_SHARD)."""
    wrap: list[str] = []
    """fsdp: class names of the modules that are sharded as one unit, e.g. LlamaDecoderLayer."""
    offload_optimizer: bool = False
    """Optimizer state in the computer's memory."""
    offload_parameters: bool = False
    """Weights in the computer's memory."""

    @property
    def effective_strategy(self) -> str:
        return self.strategy or ("ddp" if self.count > 1 else "none")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.global_batch is not None and self.global_batch % self.count:
            raise ValueError(f"a global batch of {self.global_batch} cannot be divided by {self.count} GPUs")
        if self.zero_stage and self.strategy != "deepspeed":
            raise ValueError("zero_stage needs strategy: deepspeed")
        return self


class Dataset(Section):
    """For how many steps an epoch has, and how long it takes to load."""

    size: Annotated[int, Field(ge=1)]
    """Number of samples."""
    epochs: Annotated[float, Field(gt=0, strict=False)] = 1
    """How often each is seen."""
    seconds_per_sample: Annotated[float, Field(ge=0, strict=False)] | None = None
    """What one process takes to load and prepare one sample. Left out: loading is not counted in the time of a step."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Processes that load the next batches meanwhile (a DataLoader's num_workers). 0: the loop loads itself."""


class Target(Section):
    """The card to predict for. `target: rtx-4090` alone is enough."""

    gpu: str | None = None
    """A card by any of its names, or a size such as 24GiB."""
    memory: str | None = None
    """What PyTorch may reserve at most (24GiB), instead of what the card has; the CUDA context is not part of it."""
    fraction: Annotated[float, Field(gt=0, le=1, strict=False)] | None = None
    """The same as a share of the card: what torch.cuda.set_per_process_memory_fraction is called with."""

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.memory is not None and self.fraction is not None:
            raise ValueError("memory and fraction both limit what PyTorch may reserve: leave one out")
        return self
