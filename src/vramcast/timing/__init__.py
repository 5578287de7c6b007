"""How long a step takes: the time of each operator on a card, and of all of them together."""

from vramcast.timing.parallel import Sync
from vramcast.timing.results import ModuleTime, StepTime
from vramcast.timing.step import predict_step, step_time
from vramcast.timing.throughput import Throughput, throughput

__all__ = ["ModuleTime", "StepTime", "Sync", "Throughput", "predict_step", "step_time", "throughput"]
