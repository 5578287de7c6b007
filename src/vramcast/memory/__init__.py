"""What a trace takes on a card: the replay, the account of every byte, and the verdict. No torch."""

from vramcast.memory.account import Account, Part, account
from vramcast.memory.modules import ModuleNode
from vramcast.memory.prediction import Prediction, predict, with_time
from vramcast.memory.replay import Moment, Refusal, Replay, replay

__all__ = [
    "Account",
    "ModuleNode",
    "Moment",
    "Part",
    "Prediction",
    "Refusal",
    "Replay",
    "account",
    "predict",
    "replay",
    "with_time",
]
