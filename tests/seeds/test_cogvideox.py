"""The fourth document: from a model folder. One test an id of S3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gpus.conftest import Machine, cards_here  # noqa: F401
from tests.gpus.constructed import Card
from tests.seeds.asking import ask
from vramcast.base.units import GIB

pytest.importorskip("diffusers")
FOLDERS = Path(__file__).parents[1] / "jobs" / "folders" / "cogvideox-5b"
SMALLER = {
    "transformer": {"num_layers": 2, "num_attention_heads": 4, "text_embed_dim": 64, "time_embed_dim": 64},
    "text_encoder": {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 512},
    "vae": {"block_out_channels": [32, 32, 32, 32], "layers_per_block": 1},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """CogVideoX's folder, with narrow networks of few layers."""
    place = tmp_path_factory.mktemp("models") / "CogVideoX-small"
    place.mkdir()
    (place / "model_index.json").write_text((FOLDERS / "model_index.json").read_text())
    for name, smaller in SMALLER.items():
        (place / name).mkdir()
        config = json.loads((FOLDERS / name / "config.json").read_text())
        (place / name / "config.json").write_text(json.dumps({**config, **smaller}))
    return str(place)


SIZES = ("--num_frames", "5", "--height", "64", "--width", "64")


def test_s3_a_a_folder_with_the_documents_options(folder: str) -> None:
    options = ("--batch_size", "2", "--dtype", "float16")
    found = ask("predict", "--model_path", folder, *SIZES, *options, "--gpu", "rtx-4090")
    parts = {child["name"]: child for child in found["parameters"]["children"]}
    assert set(parts) == {"transformer", "text_encoder", "vae"}
    assert found["sizes"]["batch"] == 2 and found["sizes"]["frames"] == 5
    assert parts["transformer"]["weights_bytes"] == 2 * parts["transformer"]["count"]
    assert parts["text_encoder"]["gradients_bytes"] == 0
    dashes = ask(
        "predict", "--model-path", folder, *SIZES, "--batch-size", "2", "--dtype", "float16", "--gpu", "rtx-4090"
    )
    assert dashes["device_bytes"] == found["device_bytes"]


def test_s3_b_for_what_is_free_on_that_card(folder: str, cards_here: Machine) -> None:  # noqa: F811
    cards_here(Card(), Card(used=22 * GIB), Card(used=20 * GIB))
    found = ask("advise", "--model_path", folder, *SIZES, "--device_id", "2", "--keep", "offload,freezing,trained")
    assert found["fits"] and found["local"]["index"] == 2
    assert found["limit_bytes"] < 5 * GIB


def test_s3_c_a_check_inside_the_training_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, vramcast\n"
        "from torch import nn\n"
        "def build(offload):\n"
        "    place = 'cpu' if offload else 'cuda'\n"
        "    encoder = nn.Linear(8192, 8192).requires_grad_(False).to(place)\n"
        "    head = nn.Linear(8192, 8).cuda()\n"
        "    optimizer = torch.optim.AdamW(head.parameters())\n"
        "    def step():\n"
        "        optimizer.zero_grad()\n"
        "        head(encoder(torch.randn(4, 8192, device=place)).cuda()).sum().backward()\n"
        "        optimizer.step()\n"
        "    return step\n"
        "guard = vramcast.guard(build, arguments={'offload': False}, fallbacks=['offload'], memory='500MiB', gpu='t4'\n"
        ")\n"
        "assert guard.settings == {'offload': True}, guard.settings\n"
    )
    import runpy

    runpy.run_path(str(script))


def test_s3_d_the_original_and_the_one_being_trained(folder: str, tmp_path: Path) -> None:
    job: dict[str, Any] = {
        "components": {
            "transformer": {"diffusers": folder, "subfolder": "transformer"},
            "original": {"copy_of": "transformer", "mode": "frozen", "call": False},
        },
        "sizes": {"batch": 1, "frames": 5, "height": 64, "width": 64},
        "precision": "pure-bf16",
    }
    path = tmp_path / "vramcast.yaml"
    path.write_text(json.dumps(job))
    found = ask("predict", str(path), "--gpu", "rtx-4090")
    parts = {child["name"]: child for child in found["parameters"]["children"]}
    assert parts["original"]["weights_bytes"] == parts["transformer"]["weights_bytes"]
    assert parts["original"]["gradients_bytes"] == 0 < parts["transformer"]["gradients_bytes"]


def test_s3_e_inference_training_and_offload(folder: str) -> None:
    found = ask("compare", folder, *SIZES, "--gpu", "rtx-4090")
    rows = {row["name"]: row for row in found["scenarios"]}
    assert list(rows) == ["inference", "training", "offload"]
    assert rows["inference"]["parts"]["optimizer"] == 0 < rows["training"]["parts"]["optimizer"]
    assert rows["inference"]["device_bytes"] < rows["training"]["device_bytes"]
