"""Reads a wave file of 16 bits, as torchaudio does, which needs a decoder of its own."""

from __future__ import annotations

import wave

import numpy as np
import torch


def load(path: str) -> tuple[torch.Tensor, int]:
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
        return torch.from_numpy(samples.astype(np.float32) / 32768)[None], file.getframerate()
