"""Reads a wave file of 16 bits, as librosa does."""

from __future__ import annotations

import wave

import numpy as np


def load(path: str, sr: int | None = None) -> tuple[np.ndarray, int]:
    with wave.open(path) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
        return samples.astype(np.float32) / 32768, file.getframerate()
