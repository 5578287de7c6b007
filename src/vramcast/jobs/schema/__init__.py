"""What a job is, field by field: begin with job.py."""

from vramcast.jobs.schema.batch import Diffusion, Input
from vramcast.jobs.schema.component import SOURCES, Checkpointing, Component, Lora
from vramcast.jobs.schema.job import Job
from vramcast.jobs.schema.machine import Dataset, Gpus, Target
from vramcast.jobs.schema.own_code import Script, Step
from vramcast.jobs.schema.training import Ema, Evaluation, Loss, Offload, Optimizer, Precision

__all__ = [
    "SOURCES",
    "Checkpointing",
    "Component",
    "Dataset",
    "Diffusion",
    "Ema",
    "Evaluation",
    "Gpus",
    "Input",
    "Job",
    "Lora",
    "Loss",
    "Offload",
    "Optimizer",
    "Precision",
    "Script",
    "Step",
    "Target",
]
