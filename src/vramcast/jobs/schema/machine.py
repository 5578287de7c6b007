"""Cards and data."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from vramcast.jobs.fields import Count, Section, Size

USUAL_PER_NODE = 8
ZERO_OPTIONS = (
    "allgather_partitions", "allgather_bucket_size", "overlap_comm", "reduce_scatter", "reduce_bucket_size",
    "contiguous_gradients", "round_robin_gradients", "sub_group_size", "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold", "stage3_model_persistence_threshold", "stage3_max_live_parameters",
    "stage3_max_reuse_distance", "ignore_unused_parameters",
)  # fmt: skip
"""Of DeepSpeed's `zero_optimization`."""


class Gpus(Section):
    """How many cards, and what each of them holds. `gpus: 4` alone is DDP on four."""

    count: Count = 1
    """Number of GPUs of all machines; the prediction is for one of them."""
    per_node: Count | None = None
    """GPUs of a machine. Left out: all of them, 8 at most."""
    strategy: Literal["none", "ddp", "fsdp", "hsdp", "deepspeed"] | None = None
    """What data-parallel ranks do. Left out: ddp, where there are several. hsdp: sharded inside a group, whose copies
    are kept equal as under DDP."""
    tensor: Count = 1
    """Tensor parallel: each layer is split over this many GPUs, by the plan that the model's class has in
    transformers."""
    pipeline: Count = 1
    """Pipeline parallel: layers are dealt out to this many stages (1F1B). `accumulation` is the number of microbatches;
    left at 1, there are as many as stages."""
    replicas: Count | None = None
    """hsdp: how many groups hold a whole model. Left out: as many as machines."""
    rank: Annotated[int, Field(ge=0)] | None = None
    """The rank that is predicted. Left out: the first of each pipeline stage, and the largest is shown."""
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
    zero: dict[str, bool | int | float | Literal["auto"]] = {}
    """deepspeed: what else its `zero_optimization` says, e.g. {reduce_bucket_size: 200000000}. "auto" is what Hugging
    Face's Trainer takes."""
    reshard_after_forward: bool = True
    """fsdp: give the gathered weights back after the forward pass (FULL_SHARD)."""
    wrap: list[str] = []
    """fsdp: class names of the modules that are sharded as one unit, e.g. LlamaDecoderLayer."""
    reduce_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """fsdp with mixed precision: gradients are summed in it."""
    offload_optimizer: bool = False
    """Optimizer state in the computer's memory."""
    offload_parameters: bool = False
    """Weights in the computer's memory."""

    @property
    def effective_strategy(self) -> str:
        return self.strategy or ("ddp" if self.data > 1 else "none")

    @property
    def runs_zero(self) -> bool:
        """DeepSpeed's engine trains the model. Without sharding and in whole precision it does as DDP does."""
        return self.effective_strategy == "deepspeed" and self.zero_stage > 0

    @property
    def data(self) -> int:
        """How many data-parallel ranks there are."""
        return self.count // (self.tensor * self.pipeline)

    @property
    def node_size(self) -> int:
        return min(self.per_node or USUAL_PER_NODE, self.count)

    @property
    def nodes(self) -> int:
        return math.ceil(self.count / self.node_size)

    @property
    def copies(self) -> int:
        """Groups of data-parallel ranks that each hold the whole model."""
        strategy = self.effective_strategy
        if strategy == "fsdp":
            return 1
        return self.data if strategy != "hsdp" else self.replicas or math.gcd(self.nodes, self.data)

    @property
    def divides_model(self) -> bool:
        """No GPU holds the whole model: it is sharded, split or cut into stages."""
        return self.effective_strategy in ("fsdp", "hsdp") or self.tensor > 1 or self.pipeline > 1

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.count % (self.tensor * self.pipeline):
            raise ValueError(
                f"{self.count} GPUs cannot be divided into tensor {self.tensor} x pipeline {self.pipeline}; "
                f"{self.tensor * self.pipeline} or a multiple can"
            )
        if self.global_batch is not None and self.global_batch % self.data:
            raise ValueError(f"a global batch of {self.global_batch} cannot be divided by {self.data} GPUs")
        if self.data % self.copies:
            raise ValueError(f"{self.data} data-parallel ranks cannot be divided into {self.replicas} replicas")
        if self.rank is not None and self.rank >= self.count:
            raise ValueError(f"rank {self.rank} is not one of {self.count} (0 to {self.count - 1})")
        if self.zero_stage and self.strategy != "deepspeed":
            raise ValueError("zero_stage needs strategy: deepspeed")
        if self.zero and self.strategy != "deepspeed":
            raise ValueError("`zero` needs strategy: deepspeed")
        if unknown := [name for name in self.zero if name not in ZERO_OPTIONS]:
            raise ValueError(f"zero: there is no {unknown[0]!r}; there is {', '.join(ZERO_OPTIONS)}")
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

    @field_validator("memory", mode="before")
    @classmethod
    def _without_unit(cls, value: Any) -> Any:
        return str(value) if type(value) in (int, float) else value

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.memory is not None and self.fraction is not None:
            raise ValueError("memory and fraction both limit what PyTorch may reserve: leave one out")
        return self
