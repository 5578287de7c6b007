"""GPUMemNet's random transformer encoders."""

from __future__ import annotations

import torch
from torch import nn

from lab.external.recipes.common import Built, batches_of_two_epochs, classify, describe
from lab.external.rows import Row


class Classifier(nn.Module):
    def __init__(self, row: Row) -> None:
        super().__init__()
        width = row.integer("embedding")
        self.embedding = nn.Embedding(row.integer("vocab_size"), width)
        self.positions = nn.Parameter(torch.zeros(1, row.integer("seq_length"), width))
        layer = nn.TransformerEncoderLayer(
            width,
            row.integer("heads"),
            row.integer("ff_hidden"),
            float(row.fields["dropout_rate"]),
            batch_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, row.integer("layers"))
        self.head = nn.Linear(width, row.integer("num_classes"))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(self.embedding(tokens) + self.positions)
        result: torch.Tensor = self.head(hidden.mean(dim=1))
        return result


def run(row: Row) -> Built:
    model = Classifier(row)
    model.to("cuda")
    length, vocabulary, batch = row.integer("seq_length"), row.integer("vocab_size"), row.integer("batch")
    probe = torch.randint(0, vocabulary, (batch, length)).to("cuda")
    model(probe)
    model(probe)  # once to try it, once for a printed summary; the probe stays alive
    classify(
        model,
        lambda size: torch.randint(0, vocabulary, (size, length)),
        row.integer("num_classes"),
        batches_of_two_epochs(row.integer("num_samples"), batch),
    )
    return describe(model)
