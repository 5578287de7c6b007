"""The time of one operator on one card."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.gpus.spec import GpuSpec
from vramcast.timing.costs import generic
from vramcast.timing.costs.calibration import Calibration, find_calibration
from vramcast.timing.costs.card import Card
from vramcast.timing.costs.families import parts_of
from vramcast.timing.costs.families.convolution import TURNED
from vramcast.timing.costs.part import Part
from vramcast.timing.costs.signature import parse_arguments

_LAUNCH_BOUND = 2.0


@dataclass(frozen=True, slots=True)
class OpCost:
    """What one call of an operator takes on the device."""

    kind: str
    """Kind of the part that takes longest."""
    flops: float
    bytes: float
    """The least it must move."""
    device_seconds: float
    limited_by: str
    """compute, memory or launch."""
    kernels: int
    """0 for views and for what only the host does."""
    launches: float
    """The same as they are on average."""


_NOTHING = OpCost("host", 0.0, 0.0, 0.0, "launch", 0, 0.0)


class CostModel:
    """The costs of operators on one card."""

    def __init__(self, spec: GpuSpec, calibration: Calibration | None = None) -> None:
        self.card = Card(spec)
        self.calibration = calibration
        self.calibrated = calibration is not None
        self.source = (
            calibration.source if calibration else f"specification of {spec.name}, efficiencies usual for its kind"
        )
        self.unknown_ops: dict[str, int] = {}
        """Calls of operators taken as elementwise for want of a rule, by name."""
        self._known: dict[tuple[str, str, bool, bool, tuple[bool, ...] | None], OpCost] = {}

    @staticmethod
    def for_gpu(spec: GpuSpec, calibration: Calibration | None = None) -> CostModel:
        """With the calibration given, else one that is found for this card, else the specification alone."""
        if calibration is not None:
            calibration.check_card(spec.id)
        return CostModel(spec, calibration or find_calibration(spec.id))

    def cost(
        self,
        op: str,
        args: str,
        *,
        tf32: bool = False,
        cudnn_tf32: bool = True,
        turned: tuple[bool, ...] | None = None,
    ) -> OpCost:
        """The cost of `op` (`aten.mm.default`) with arguments as `describe_arguments` writes them. `turned`: of a
        convolution, where it is known, as timing/workspaces.py says."""
        key = (op, args, tf32, cudnn_tf32, turned)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._work_out(*key)
        if op in self.unknown_ops:
            self.unknown_ops[op] += 1
        return known

    def _work_out(self, op: str, args: str, tf32: bool, cudnn_tf32: bool, turned: tuple[bool, ...] | None) -> OpCost:
        arguments = parse_arguments(args)
        if turned is not None:
            arguments.kwargs[TURNED] = list(turned)
        parts, listed = parts_of(op, arguments, self.card, tf32=tf32, cudnn_tf32=cudnn_tf32)
        if not listed and parts:
            self.unknown_ops.setdefault(op, 0)
        if not parts:
            return _NOTHING
        times = [self.part_seconds(part) for part in parts]
        launches = sum(self._launched(part) for part in parts)
        longest = max(zip(times, parts, strict=True), key=lambda pair: pair[0])[1]
        return OpCost(
            kind=longest.kind,
            flops=sum(part.flops for part in parts),
            bytes=sum(part.bytes for part in parts),
            device_seconds=sum(times),
            limited_by=self._limit(longest, max(times)),
            kernels=max(round(launches), 1) if launches else 0,
            launches=launches,
        )

    def part_seconds(self, part: Part) -> float:
        """Never below what the card's peak allows."""
        model = self.calibration.kinds.get(part.kind) if self.calibration else None
        seconds = model.seconds(part) if model is not None else generic.seconds(part, self.card.spec)
        return max(seconds, self.card.least_seconds(part.flops, part.unit, part.bytes))

    def _launched(self, part: Part) -> float:
        model = self.calibration.kinds.get(part.kind) if self.calibration else None
        return model.launched(part) if model is not None else part.kernels

    def _limit(self, part: Part, seconds: float) -> str:
        if seconds < _LAUNCH_BOUND * generic.LAUNCH_SECONDS:
            return "launch"
        arithmetic = part.flops / self.card.rate(part.unit)
        return "compute" if arithmetic > part.bytes / self.card.bandwidth else "memory"
