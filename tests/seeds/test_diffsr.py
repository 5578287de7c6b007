"""The second document: a gate before training, by config, by flags, by formula. One test an id of S1."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.features.verbs.test_scaling import CONV
from tests.seeds.asking import ask
from vramcast.cli.main import main
from vramcast.memory.margin import OTHER_CARD, margin_of

CONFIG = """
model: {name: FNO2d, modes1: [4, 4], modes2: [4, 4], layers: [16, 16, 16], fc_dim: 32, in_dim: 1, out_dim: 1}
data: {name: Ocean, sample_factor: 4, shape: [64, 64], train_batchsize: 8}
train: {epochs: 500, accumulation_steps: 1, use_amp: false}
optimize: {optimizer: AdamW, lr: 0.001}
"""
QUICK = ("--height", "256", "--width", "256", "--hidden_dim", "512", "--num_layers", "10", "--gpu_memory", "24")


def test_s1_a_config_alone(tmp_path: Path) -> None:
    path = tmp_path / "fno_ocean.yaml"
    path.write_text(CONFIG)
    found = ask("check", "--config", str(path), "--gpu", "rtx-4090")
    assert found["fits"]
    predicted = ask("predict", "--config", str(path), "--gpu", "rtx-4090")
    assert predicted["recognised_as"] == "DiffSR config (plain fno)"
    assert predicted["sizes"] == {"batch": 8, "height": 64, "width": 64}
    spectral = 2 * 2 * 16 * 16 * 4 * 4
    assert predicted["parameters"]["count"] == spectral + 32 + 2 * 272 + 544 + 33
    assert any("FNO2d is not there" in note["text"] for note in predicted["prediction"]["notes"])


def test_s1_a_a_class_with_relative_imports(tmp_path: Path) -> None:
    folder = tmp_path / "diffsr_models"
    folder.mkdir()
    (folder / "layers.py").write_text(
        "from torch import nn\ndef conv(a, b):\n    return nn.Conv2d(a, b, 3, padding=1)\n"
    )
    (folder / "fno.py").write_text(
        "from torch import nn\nfrom .layers import conv\nclass FNO2d(nn.Module):\n"
        "    def __init__(self, fc_dim):\n        super().__init__()\n"
        "        self.net = nn.Sequential(nn.Upsample(scale_factor=4), conv(1, fc_dim), conv(fc_dim, 1))\n"
        "    def forward(self, x):\n        return self.net(x)\n"
    )
    path = tmp_path / "train.yaml"
    path.write_text(CONFIG)
    found = ask("predict", str(path), "--model", f"{folder / 'fno.py'}:FNO2d", "--gpu", "rtx-4090")
    assert found["parameters"]["count"] == (9 * 32 + 32) + (9 * 32 + 1)


def test_s1_b_the_quick_formula() -> None:
    argv = ("--batch", "8", "--height", "128", "--width", "128", "--hidden_dim", "256", "--num_layers", "10")
    found = ask("check", *argv, "--gpu_memory", "24")
    assert found["layer_bytes"] == 8 * 128 * 128 * 256 * 4 == 134_217_728
    assert found["total_bytes"] == 10 * found["layer_bytes"]
    assert found["allowed_bytes"] == int(24 * 2**30 * 0.7)
    assert ask("check", *argv, "--gpu_memory", "24", "--threshold", "0.6")["allowed_bytes"] == int(24 * 2**30 * 0.6)


def test_s1_c_a_verdict_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--batch", "4", *QUICK]) == 0
    assert "to spare" in capsys.readouterr().out
    assert main(["check", "--batch", "16", *QUICK]) == 1
    assert "too much" in capsys.readouterr().out


def test_s1_d_the_batch_and_the_accumulation_that_keep_the_step() -> None:
    quick = ask("check", "--batch", "16", *QUICK, code=1)
    assert quick["largest_batch"] == 13 and (quick["kept_batch"], quick["accumulation"]) == (8, 2)
    found = ask("advise", "tests.jobs.tiny:JOB", "--batch", "200000", "--memory", "3GiB")
    size = next(one for one in found["largest"] if one["axis"] == "batch")
    assert size["kept_batch"] * size["accumulation"] == 200_000 and size["kept_batch"] <= size["sizes"]["batch"]
    first = found["best"][0]
    assert first["samples_per_step"] == 200_000 and all(change["cost"] for change in first["changes"])


def test_s1_e_a_table_by_card_and_resolution(tmp_path: Path) -> None:
    job = tmp_path / "vramcast.yaml"
    job.write_text(__import__("json").dumps(CONV))
    argv = ("table", str(job), "--allow-code", "--gpus", "2GiB,3GiB,4GiB", "--height", "64,128,256", "--width", "64")
    found = ask(*argv)
    assert found["sizes"] == ["64 × 64", "128 × 64", "256 × 64"]
    assert found["traces"] <= 5 * 9, "a few a cell"
    batches = {(cell["gpu"], cell["size"]): cell["batch"] for cell in found["cells"]}
    for cell in found["cells"]:
        assert cell["fits"] and cell["margin"] == pytest.approx(margin_of(OTHER_CARD).share)
        assert (1 + cell["margin"]) * cell["device_bytes"] <= cell["limit_bytes"] * 1.0001
    first = found["gpus"][0]["id"]
    assert batches[first, "64 × 64"] > batches[first, "128 × 64"] > batches[first, "256 × 64"] > 0


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [("fno", None), ("unet", None), ("ddpm", None), ("transformer", 12 * (12 * 32 * 32 + 13 * 32) + 64)],
)
def test_s1_f_the_layers_of_a_kind_are_known(kind: str, parameters: int | None) -> None:
    argv = ("--arch", kind, "--batch", "2", "--height", "64", "--width", "64", "--hidden_dim", "32")
    found = ask("predict", *argv, "--gpu", "rtx-4090")
    assert found["fits"] and found["recognised_as"] == f"plain {kind}"
    assert parameters is None or found["parameters"]["count"] == parameters
    assert ask("check", *argv, "--gpu_memory", "24")["fits"]
