"""The recipes of published runs build what their description says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lab.external.recipes import cnn, mlp
from lab.external.recipes.common import batches_of_two_epochs, describe
from lab.external.rows import Row


def _row(source: str, **fields: object) -> Row:
    return Row(source, 1, "a100-40gb", source, 2000.0, {key: str(value) for key, value in fields.items()})


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("uniform", [100, 100, 100]),
        ("pyramid", [50, 25, 20]),
        ("bottleneck", [50, 25, 20, 20]),
        ("gradual", [74, 48, 22]),
    ],
)
def test_mlp_widths(architecture: str, expected: list[int]) -> None:
    assert mlp.widths(architecture, 100, 20, 3) == expected


def test_mlp_layers() -> None:
    row = _row(
        "mlp", input_size=8, output_size=4, hidden_layers=1, architecture="uniform", activation="prelu",
        use_batchnorm=1, use_dropout=1, dropout_rate=0.2,
    )  # fmt: skip
    model = mlp.build(row)
    kinds = [type(layer) for layer in model]
    assert kinds == [nn.Linear, nn.BatchNorm1d, nn.PReLU, nn.Dropout, nn.Linear, nn.Softmax]
    assert describe(model).parameters == 8 * 8 + 8 + 2 * 8 + 1 + 8 * 4 + 4


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("uniform", [32, 32, 32, 32]),
        ("pyramid", [32, 90, 256, 724]),
        ("gradual", [32, 53, 90, 152]),
        ("bottleneck", [64, 32, 128, 512]),
        ("hourglass", [32, 256, 256, 32]),
    ],
)
def test_cnn_widths(architecture: str, expected: list[int]) -> None:
    widths = cnn.widths(architecture, 32, 4)
    # A root that should be whole may fall just short of it, in the source too; int() then gives one less.
    assert all(abs(a - b) <= 1 for a, b in zip(widths, expected, strict=True)), widths


def test_residual_network_stops_at_small_maps() -> None:
    row = _row(
        "cnn", architecture="residual", depth=20, base_filters=32, in_channels=3, image_size=16, activation="relu",
        use_batchnorm=0, use_dropout=0, dropout_rate=0.1,
    )  # fmt: skip
    found, channels = cnn.blocks(row)
    out = nn.Sequential(*found)(torch.zeros(1, 3, 16, 16))
    assert out.shape[1] == channels and out.shape[2] == 4  # 16 → 8 → 4, the first size of 7 or less
    assert len(found) == 4


def test_batches_of_an_epoch_and_the_next() -> None:
    assert batches_of_two_epochs(4096, 1000) == [1000] * 3 + [96] + [1000] * 3
    assert batches_of_two_epochs(4096, 2048) == [2048] * 4
    assert batches_of_two_epochs(100, 128) == [100] * 3
