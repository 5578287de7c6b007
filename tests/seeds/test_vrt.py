"""The first document: the whole memory account of VRT, from KAIR's options. One test an id of S0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vramcast
from tests.seeds.asking import ask, stages_of
from vramcast.cli.main import main
from vramcast.memory.stage_outputs import held_outputs_bytes
from vramcast.memory.stages import stages

VRT = ("--model", "tests.seeds.networks:VRT")
OPTIONS = """{
  "task": "deblur_small" // the options of GoPro deblurring, at small sizes
  , "model": "vrt"
  , "gpu_ids": [0,1,2]
  , "dist": true
  , "scale": 1
  , "n_channels": 3
  , "datasets": {"train": {"num_frame": 6, "gt_size": 64, "dataloader_batch_size": 3 /* of all GPUs */
    , "dataloader_num_workers": 8}}
  , "netG": {
    "net_type": "vrt"
    , "upscale": 1
    , "depths": [2,2,2]
    , "embed_dims": [32,32,32]
    , "spynet_path": "model_zoo/vrt/spynet_sintel_final-3d2a1287.pth" // automatical download
    , "use_checkpoint_attn": true
    , "use_checkpoint_ffn": true
    , "no_checkpoint_attn_blocks": [1]
    , "no_checkpoint_ffn_blocks": [1,2]
  }
  , "train": {
    "G_lossfn_type": "charbonnier", "G_optimizer_type": "adam", "G_optimizer_lr": 4e-4
    , "fix_iter": 20000, "fix_keys": ["conv_first"]
  }
}
""".replace(" /* of all GPUs */", "")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("kair") / "options.json"
    path.write_text(OPTIONS)
    return str(path)


@pytest.fixture(scope="module")
def account(options: str) -> Any:
    return ask("predict", options, *VRT, "--gpu", "h200")


def test_s0_a_kair_options_as_they_are(account: Any) -> None:
    assert account["recognised_as"].startswith("KAIR option file")
    assert account["sizes"] == {"batch": 1, "frames": 6, "height": 64, "width": 64}
    assert account["samples_per_step"] == 3
    network = account["job"]["components"]["network"]
    assert network["freeze"] == ["conv_first"] and network["freeze_steps"] == 20_000
    wish = account["job"]["checkpointing"]
    assert wish["attention"] and wish["skip_attention_blocks"] == [1] and wish["skip_feed_forward_blocks"] == [1, 2]
    notes = [note["text"] for note in account["prediction"]["notes"]]
    assert any("spynet_path" in text and "without loading" in text for text in notes)


def test_s0_b_parameters_by_module(account: Any) -> None:
    (network,) = account["parameters"]["children"]
    parts = {child["name"].rpartition(".")[2]: child for child in network["children"]}
    assert parts["stage1"]["count"] == parts["stage3"]["count"] == 25_152
    assert parts["stage1"]["optimizer_bytes"] == 2 * parts["stage1"]["weights_bytes"]
    assert parts["stage1"]["gradients_bytes"] == parts["stage1"]["weights_bytes"] == 4 * 25_152
    assert sum(child["count"] for child in network["children"]) == network["count"] == account["parameters"]["count"]


def test_s0_c_activations_by_stage_and_kind(account: Any) -> None:
    by_name = stages_of(account)
    first, second, third = (by_name[f"network.stage{i}"] for i in (1, 2, 3))
    assert all(stage["output_shape"] == [6, 64, 64, 32] for stage in (first, second, third))
    assert first["checkpointed"] and not second["checkpointed"] and third["checkpointed"]
    assert {"qkv", "attention", "ffn"} <= set(second["roles"])
    for stage in (first, second, third):
        assert sum(role["stays_bytes"] for role in stage["roles"].values()) == stage["stays_bytes"]
    rows = 6 * 64 * 64
    assert second["roles"]["qkv"]["stays_bytes"] == 2 * rows * 3 * 32 * 4
    assert first["roles"]["qkv"]["stays_bytes"] == 0 < first["roles"]["qkv"]["inside_bytes"]


def test_s0_d_shows_its_working(options: str) -> None:
    document = ask("explain", options, "network.stage2.0.attn", *VRT, "--gpu", "h200")
    text = json.dumps(document)
    assert "6, 64, 64, 64" in text, "the matrices of attention, windows × pixels × pixels"


def test_s0_e_everything_else(account: Any) -> None:
    parts = account["prediction"]["account"]["parts"]
    assert parts["inputs"] == 2 * 6 * 3 * 64 * 64 * 4, "the blurred clip and the sharp one"
    assert parts["context and kernels"] > 2**28
    assert {"workspaces", "fragmentation", "rounding", "outputs/other"} <= set(parts)
    assert sum(parts.values()) == account["device_bytes"]
    clip = 6 * 3 * 64 * 64 * 4
    assert account["pinned"] == {"batches": 1 + 2 * (8 // 3), "batch_bytes": 2 * (1 << (clip - 1).bit_length())}


def test_s0_f_the_total_and_the_cards(account: Any) -> None:
    assert account["with_margin_bytes"] > account["device_bytes"]
    cards = {card["gpu"]: card for card in account["cards"]}
    assert cards["rtx-4090"]["fits"] and cards["rtx-4090"]["comfortable"]
    assert cards["rtx-4090"]["limit_bytes"] - cards["rtx-4090"]["device_bytes"] == cards["rtx-4090"]["headroom_bytes"]


def test_s0_g_more_checkpointing_takes_less(options: str, account: Any) -> None:
    every = ask("predict", options, *VRT, "--gpu", "h200", "--checkpointing", "all")
    none = ask("predict", options, *VRT, "--gpu", "h200", "--checkpointing", "none")

    def peak(document: Any) -> int:
        return int(document["prediction"]["peak_allocated_bytes"])

    assert peak(every) < peak(account) < peak(none)


def test_s0_g_what_to_do_on_a_smaller_card(options: str, tmp_path: Path, account: Any) -> None:
    """A smaller crop that the options can say, before offloading; no crop is looked at that the network refuses."""
    base = ("advise", options, *VRT, "--gpu", "h200", "--largest")
    keep = ("--keep", "precision,checkpointing,allocator,frames,gpus,optimizer")
    memory = (account["device_bytes"] - account["prediction"]["peak_allocated_bytes"]) + int(
        0.75 * account["prediction"]["peak_allocated_bytes"]
    )
    written = tmp_path / "smaller.json"
    found = ask(*base, *keep, "--memory", str(memory), "--write", str(written))
    first = found["best"][0]
    assert "sizes.height" in first["overrides"], found["best"]
    assert first["overrides"]["sizes.height"] == first["overrides"]["sizes.width"] < 64
    assert '"gt_size": ' in written.read_text() and "//" in written.read_text()
    assert not any("smaller than two windows" in problem for problem in found["refused"])


def test_s0_h_a_measurement_needs_a_gpu(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    assert main(["measure", str(script)]) == 2
    assert "measuring needs a GPU" in capfd.readouterr().err


class _FusedAttention(nn.Module):
    """As VRT's: one projection, whose three parts a matrix product copies."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        windows, pixels, _ = x.shape
        q, k, v = self.qkv(x).reshape(windows, pixels, 3, 4, 8).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(windows, pixels, 32))


def test_s0_c_copies_of_queries_keys_and_values_count_as_such() -> None:
    with vramcast.virtual_gpu("h200") as gpu:
        model = nn.ModuleDict({"attn": _FusedAttention()}).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        model["attn"](torch.randn(6, 64, 32, device="cuda")).sum().backward()
        optimizer.step()
    roles = stages(gpu.trace()).roles
    numbers = 6 * 64 * 32
    assert roles["qkv"].stays_bytes == 3 * numbers * 4
    assert roles["attention"].stays_bytes == (6 * 4 * 64 * 64 + numbers) * 4, "the weights, and what proj is given"


class _Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).relu()


class _Align(nn.Module):
    """Features at other places, as flow says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = torch.zeros(x.shape[0], *x.shape[-2:], 2, device=x.device) + x.mean()
        return nn.functional.grid_sample(x, grid, align_corners=False)


class _Skipping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stage1, self.align, self.stage2, self.stage3 = _Stage(), _Align(), _Stage(), _Stage()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.stage1(x)
        return self.stage3(self.stage2(self.align(first))) + first


def test_s0_e_warps_and_skips_have_lines_of_their_own() -> None:
    with vramcast.virtual_gpu("h200") as gpu:
        model = _Skipping().cuda()
        optimizer = torch.optim.SGD(model.parameters())
        model(torch.randn(2, 8, 64, 64, device="cuda")).sum().backward()
        optimizer.step()
    trace = gpu.trace()
    features, grid = 2 * 8 * 64 * 64 * 4, 2 * 64 * 64 * 2 * 4
    assert stages(trace).roles["warp"].stays_bytes == grid + features, "where to sample, and what was sampled"
    shapes = {f"_Skipping.{name}": (2, 8, 64, 64) for name in ("stage1", "align", "stage2", "stage3")}
    assert held_outputs_bytes(trace, shapes) == 2 * features, "the skip of stage1; align's, which stage2 keeps"
