"""Recurrent networks: on CUDA each layer stack is one cuDNN call with a reserve space."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.workloads.common import Batch, Step, make_optimizer, train


class LanguageModel(nn.Module):
    def __init__(self, kind: str, vocabulary: int, width: int, layers: int, dropout: float, two_way: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        recurrent = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind]
        self.recurrent = recurrent(width, width, layers, batch_first=True, dropout=dropout, bidirectional=two_way)
        self.output = nn.Linear(2 * width if two_way else width, vocabulary)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        embedded = self.embedding(ids)
        if lengths is None:
            hidden, _ = self.recurrent(embedded)
        else:
            packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
            packed_hidden, _ = self.recurrent(packed)
            hidden, _ = nn.utils.rnn.pad_packed_sequence(packed_hidden, batch_first=True)
        return self.output(hidden)


def rnn_lm(
    *, kind: str = "lstm", batch: int = 64, length: int = 180, width: int = 1100, layers: int = 3,
    vocabulary: int = 30000, dropout: float = 0.2, two_way: bool = False, packed: bool = False,
    precision: str = "fp32", optimizer: str = "adam", clip: float | None = 0.25, style: str = "function",
) -> Step:  # fmt: skip
    """A word-level language model; packed batches carry their lengths on the CPU."""
    model = LanguageModel(kind, vocabulary, width, layers, dropout, two_way).cuda()
    ids = torch.randint(0, vocabulary, (batch, length))
    lengths = torch.randint(length // 2, length + 1, (batch,), generator=torch.Generator().manual_seed(7))
    lengths[0] = length

    def forward(model: nn.Module, batch: Batch) -> Any:
        logits = model(batch["ids"], lengths if packed else None)
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, vocabulary), batch["ids"][:, 1:].reshape(-1))
        return (loss, logits) if style == "loop" else loss

    return train(
        model, {"ids": ids}, forward, make_optimizer(optimizer, model.parameters()), precision=precision, clip=clip,
        style=style,
    )  # fmt: skip


class ConvRecurrent(nn.Module):
    """Convolutions over a spectrogram, a bidirectional GRU, and CTC: the shape of DeepSpeech 2."""

    def __init__(self, width: int, layers: int, characters: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), stride=(2, 2), padding=(20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), stride=(2, 1), padding=(10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.recurrent = nn.GRU(32 * 41, width, layers, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * width, characters)

    def forward(self, spectrogram: torch.Tensor) -> torch.Tensor:
        features = self.convolutions(spectrogram)
        batch, channels, bands, frames = features.shape
        features = features.permute(0, 3, 1, 2).reshape(batch, frames, channels * bands)
        hidden, _ = self.recurrent(features)
        return self.output(hidden).log_softmax(-1)


def deepspeech(
    *, batch: int = 20, frames: int = 900, width: int = 800, layers: int = 5, precision: str = "fp32",
    optimizer: str = "sgd-nesterov-fused",
) -> Step:  # fmt: skip
    model = ConvRecurrent(width, layers, 29).cuda()
    data = {"spectrogram": torch.randn(batch, 1, 161, frames), "targets": torch.randint(1, 29, (batch, 110))}

    def forward(model: nn.Module, batch: Batch) -> Any:
        scores = model(batch["spectrogram"]).transpose(0, 1)
        count = scores.shape[1]
        input_lengths = torch.full((count,), scores.shape[0], dtype=torch.long, device="cuda")
        target_lengths = torch.full((count,), 110, dtype=torch.long, device="cuda")
        return F.ctc_loss(scores, batch["targets"], input_lengths, target_lengths, zero_infinity=True)

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, clip=5.0)
