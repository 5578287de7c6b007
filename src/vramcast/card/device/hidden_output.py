"""Silence warnings of libraries that make no sense on a virtual GPU."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_TALKATIVE = (
    *("transformers", "diffusers", "peft", "bitsandbytes", "accelerate"),
    *("lightning", "lightning.pytorch", "pytorch_lightning"),
)


@contextmanager
def libraries_quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
