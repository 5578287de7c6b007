"""What one operator costs on a card: arithmetic, bytes moved, and the time the device spends on it."""

from vramcast.timing.costs.calibration import Calibration
from vramcast.timing.costs.model import CostModel, OpCost

__all__ = ["Calibration", "CostModel", "OpCost"]
