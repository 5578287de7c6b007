"""The third document: several components, some frozen, on a card that others use too. One test an id of S2."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.gpus.conftest import Machine, cards_here  # noqa: F401
from tests.gpus.constructed import Card
from tests.seeds.asking import ask
from vramcast.base.units import GIB
from vramcast.cli.main import main

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 256,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 2048,
    "max_position_embeddings": 256,
}  # fmt: skip
POLICY = {
    "name": "policy",
    "components": {
        "vision": {"factory": "tests.seeds.networks:Tower", "mode": "frozen", "inputs": ["images"]},
        "language": {
            "transformers": "llama", "task": "feature-extraction", "config": {"use_cache": False}, "dtype": "bf16",
            "mode": "frozen", "inputs": {"input_ids": "words"},
        },
        "head": {
            "factory": "tests.seeds.networks:Head", "role": "model", "inputs": ["vision", "language.last_hidden_state"],
        },
    },
    "inputs": {
        "images": {"shape": ["batch", 3, "height", "width"]},
        "words": {"shape": ["batch", "words"], "dtype": "int64", "below": 2048},
        "actions": {"shape": ["batch", 7]},
    },
    "sizes": {"batch": 8, "height": 518, "width": 518, "words": 64},
    "loss": {"kind": "mse", "prediction": "head", "target": "actions"},
    "precision": {"weights": "fp32", "autocast": "bf16"},
    "optimizer": "adamw",
    "scenarios": {
        "language_trained": {"components": {"language": {"mode": "trained"}}},
        "everything": {"components": {"language": {"mode": "trained"}, "vision": {"mode": "trained"}}},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("policy")
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text(json.dumps(LLAMA))
    (folder / "vramcast.yaml").write_text(json.dumps(POLICY))
    return str(folder / "vramcast.yaml")


def test_s2_a_what_is_used_and_by_whom(cards_here: Machine, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    cards_here(Card(total=49140 * 2**20, used=20 * GIB, compute=((os.getpid(), 20 * GIB),)))
    assert main(["gpus", "--here", "--json"]) == 0
    (card,) = json.loads(capsys.readouterr().out)["gpus"]
    assert card["used_bytes"] >= 20 * GIB and card["free_bytes"] < 29 * GIB
    assert card["processes"][0]["pid"] == os.getpid() and card["processes"][0]["used_bytes"] == 20 * GIB


def test_s2_b_each_component_by_itself(policy: str) -> None:
    found = ask("predict", policy, "--allow-code", "--gpu", "rtx-6000-ada")
    parts = {child["name"]: child for child in found["parameters"]["children"]}
    assert parts["vision"]["gradients_bytes"] == parts["language"]["optimizer_bytes"] == 0
    assert parts["language"]["weights_bytes"] == 2 * parts["language"]["count"], "in bf16"
    assert parts["head"]["optimizer_bytes"] == 2 * parts["head"]["weights_bytes"] > 0
    stages = {child["name"]: child for child in found["stages"]["children"]}
    assert stages["vision"]["momentary_bytes"] > 0 == stages["vision"]["stays_bytes"]


def test_s2_c_scenarios_against_what_is_free(policy: str) -> None:
    found = ask("compare", policy, "--allow-code", "--gpu", "rtx-6000-ada", "--memory", "27.69GiB")
    rows: dict[str, Any] = {row["name"]: row for row in found["scenarios"]}
    assert list(rows) == ["policy", "language_trained", "everything"]
    assert found["available_bytes"] == round(27.69 * GIB)
    assert (
        rows["policy"]["device_bytes"] <= rows["language_trained"]["device_bytes"] < rows["everything"]["device_bytes"]
    )
    for row in rows.values():
        assert sum(row["parts"].values()) == row["device_bytes"]
        assert row["parts"]["activations"] <= row["most_activations_bytes"] + 2**20
    assert rows["everything"]["most_activations_bytes"] > rows["policy"]["most_activations_bytes"]


def test_s2_d_strategies_that_the_model_can_take(policy: str) -> None:
    """Sizes are multiples of the patch, one component of several may be frozen, and what fits is never called too
    large."""
    everything = ("--set", "components.language.mode=trained", "--set", "components.vision.mode=trained")
    asked = ask("check", policy, "--allow-code", *everything, "--gpu", "rtx-6000-ada", code=None)
    memory = str(asked["needed_bytes"] - (asked["needed_bytes"] - 700 * 2**20) // 3)
    found = ask("advise", policy, "--allow-code", *everything, "--gpu", "rtx-6000-ada", "--memory", memory, code=None)
    assert found["best"] and found["smallest"] is None
    assert not any("multiples of the patch" in problem for problem in found["refused"])
    texts = [change["text"] for one in (*found["best"], *found["front"]) for change in one["changes"]]
    assert not any(" 0 of " in text for text in texts)
    for one in found["best"]:
        assert one["device_bytes"] <= int(memory) and one["samples_per_step"] == 8


def test_s2_e_ready_configurations(policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "fits.yaml"
    keep = "batch,checkpointing,precision,optimizer,offload,resolution,allocator,gradients,freezing,trained,gpus"
    argv = ["advise", policy, "--allow-code", "--gpu", "rtx-6000-ada", "--keep", keep, "--write", str(written)]
    assert main([*argv, "--memory", "700MiB"]) == 1
    assert "nothing was written" in capsys.readouterr().err and not written.exists()
    assert main(argv) == 0
    assert f"wrote {written}" in capsys.readouterr().err
    assert ask("check", str(written), "--allow-code", "--gpu", "rtx-6000-ada")["fits"]
    plan = ask("plan", policy, "--allow-code", "--gpu", "rtx-6000-ada")
    assert plan["checks"] and plan["steps"][-1]["batch"] == 8
