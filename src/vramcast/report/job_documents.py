"""The account of a job as JSON: everything that a prediction has, and what only a job knows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vramcast.features.compare.results import JOB_PREDICTION_FORMAT
from vramcast.memory.parameters import ParameterNode
from vramcast.memory.stages import Stage
from vramcast.prediction.job_account import JobAccount
from vramcast.report.documents import prediction_document, time_document

JOB_VERSION = 1


def job_document(account: JobAccount, job: dict[str, Any]) -> dict[str, Any]:
    return {
        "format": JOB_PREDICTION_FORMAT,
        "version": JOB_VERSION,
        "name": account.name,
        "recognised_as": account.recognised_as,
        "task": account.task,
        "job": job,
        "sizes": dict(account.sizes),
        "samples_per_step": account.samples_per_step,
        "steps_per_epoch": account.steps_per_epoch,
        "fits": account.prediction.fits,
        "device_bytes": account.prediction.device_bytes,
        "with_margin_bytes": account.prediction.with_margin_bytes,
        "time": None if account.time is None else time_document(account.time, account.throughput),
        "parameters": _parameters(account.parameters),
        "stages": _stage(account.stages, account),
        "held_outputs_bytes": account.held_outputs_bytes,
        "pinned": {"batches": account.pinned_batches, "batch_bytes": account.pinned_batch_bytes},
        "cards": [
            {
                "gpu": card.gpu.id,
                "fits": card.fits,
                "comfortable": card.comfortable,
                "device_bytes": card.device_bytes,
                "limit_bytes": card.limit_bytes,
                "headroom_bytes": card.headroom_bytes,
            }
            for card in account.cards
        ],
        "prediction": prediction_document(account.prediction),
    }


def _parameters(node: ParameterNode) -> dict[str, Any]:
    return {
        "name": node.name,
        "count": node.count,
        "trained_count": node.trained_count,
        "weights_bytes": node.weights_bytes,
        "gradients_bytes": node.gradients_bytes,
        "optimizer_bytes": node.optimizer_bytes,
        "children": [_parameters(child) for child in node.children],
    }


def _stage(node: Stage, account: JobAccount) -> dict[str, Any]:
    shape = account.output_shapes.get(node.name)
    return {
        "name": node.name,
        "output_shape": None if shape is None else list(shape),
        "stays_bytes": node.stays_bytes,
        "inside_bytes": node.inside_bytes,
        "momentary_bytes": node.momentary_bytes,
        "checkpointed": node.checkpointed,
        "roles": {role: asdict(sizes) for role, sizes in node.roles.items()},
        "children": [_stage(child, account) for child in node.children],
    }
