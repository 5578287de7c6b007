"""Results as JSON. Every document names its format and version; docs/json.md says what each field means.

Sizes are integers of bytes, times are seconds. A later version may add fields; it takes none away.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vramcast.base.language import spoken
from vramcast.features.compare.results import PREDICTION_FORMAT, PREDICTION_VERSION
from vramcast.features.compare.side_by_side import Comparison
from vramcast.memory import Account, Moment, Prediction
from vramcast.memory.modules import ModuleNode
from vramcast.report.wording import verdict
from vramcast.timing import ModuleTime, StepTime, Throughput
from vramcast.trace.schema import KINDS

COMPARISON_FORMAT = "vramcast-comparison"
COMPARISON_VERSION = 1


def prediction_document(prediction: Prediction) -> dict[str, Any]:
    refusal = prediction.out_of_memory
    return {
        "format": PREDICTION_FORMAT,
        "version": PREDICTION_VERSION,
        "verdict": _verdict(prediction),
        "fits": prediction.fits,
        "at_least": prediction.at_least,
        "peak_allocated_bytes": prediction.peak_allocated_bytes,
        "peak_reserved_bytes": prediction.peak_reserved_bytes,
        "touched_bytes": prediction.touched_bytes,
        "device_bytes": prediction.device_bytes,
        "interval_bytes": list(prediction.interval),
        "reserved_interval_bytes": list(prediction.reserved_interval),
        "margin": _margin(prediction),
        "context_bytes": prediction.context_bytes,
        "limit_bytes": prediction.limit_bytes,
        "headroom_bytes": prediction.headroom_bytes,
        "host": None if prediction.host is None else prediction.host.to_dict(),
        **({"card": prediction.card, "cards": [asdict(use) for use in prediction.cards]} if prediction.cards else {}),
        "retries": prediction.retries,
        "growth": _growth(prediction),
        "curve": [asdict(levels) for levels in prediction.curve],
        "out_of_memory": refusal and {"tried_bytes": refusal.tried_bytes, "at": asdict(refusal.at)},
        "gpu": prediction.gpu.to_dict(),
        "source": prediction.source,
        "steps": prediction.steps,
        "replayed_steps": prediction.replayed_steps,
        "allocator_conf": prediction.allocator_conf,
        "versions": dict(prediction.versions),
        "account": account_document(prediction.account),
        "time": None if prediction.time is None else time_document(prediction.time),
        "notes": [asdict(note) for note in prediction.notes],
    }


def _verdict(prediction: Prediction) -> str:
    """In English, whatever is spoken: programs read it."""
    with spoken("en"):
        return verdict(prediction)


def _margin(prediction: Prediction) -> dict[str, Any]:
    return {**asdict(prediction.margin), "with_margin_bytes": prediction.with_margin_bytes}


def _growth(prediction: Prediction) -> dict[str, Any] | None:
    if prediction.outlook is None:
        return None
    return {
        **prediction.outlook.growth.to_dict(),
        "out_of_memory_step": prediction.outlook.out_of_memory_step,
        "exact": prediction.outlook.exact,
    }


def account_document(account: Account) -> dict[str, Any]:
    return {
        "moment": _moment(account.moment),
        "device_bytes": account.device_bytes,
        "parts": {part.name: part.size_bytes for part in account.parts},
        "modules": _module(account.modules),
        "steps": [_without_phase(asdict(stretch)) for stretch in account.steps],
        "phases": [asdict(stretch) for stretch in account.phases],
        "timeline": {
            "kinds": list(KINDS),
            "points": [asdict(point) for point in account.timeline],
        },
    }


def time_document(time: StepTime, throughput: Throughput | None = None) -> dict[str, Any]:
    return {
        "step_seconds": time.seconds,
        "low_seconds": time.low_seconds,
        "high_seconds": time.high_seconds,
        "phases": dict(time.phases),
        "recompute_seconds": time.recompute_seconds,
        "device_seconds": time.device_seconds,
        "host_seconds": time.host_seconds,
        "host": time.host,
        "host_factor": time.host_factor,
        "host_bound": time.host_bound,
        "card_seconds": time.card_seconds,
        "limits": dict(time.limits),
        "limited_by": time.limited_by,
        "flops": time.flops,
        "peak_share": time.peak_share,
        "ops": time.ops,
        "waits": time.waits,
        "calibrated": time.calibrated,
        "source": time.source,
        "unknown_ops": dict(time.unknown_ops),
        "throughput": None if throughput is None else asdict(throughput),
        "modules": _module_time(time.modules),
    }


def _module_time(node: ModuleTime) -> dict[str, Any]:
    return {
        "name": node.name,
        "forward_seconds": node.forward_seconds,
        "backward_seconds": node.backward_seconds,
        "recompute_seconds": node.recompute_seconds,
        "other_seconds": node.other_seconds,
        "children": [_module_time(child) for child in node.children],
    }


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    return {
        "format": COMPARISON_FORMAT,
        "version": COMPARISON_VERSION,
        "columns": [{"name": c.name, "kind": c.kind} for c in comparison.columns],
        "reference": comparison.columns[comparison.reference].name,
        "rows": [
            {"group": row.group, "name": row.name, "unit": row.unit, "values": list(row.values)}
            for row in comparison.rows
        ],
    }


def _moment(moment: Moment) -> dict[str, Any]:
    return asdict(moment)


def _without_phase(stretch: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stretch.items() if name != "phase"}


def _module(node: ModuleNode) -> dict[str, Any]:
    return {
        "name": node.name,
        "self_bytes": node.self_bytes,
        "total_bytes": node.total_bytes,
        "by_kind_bytes": dict(node.by_kind_bytes),
        "children": [_module(child) for child in node.children],
    }
