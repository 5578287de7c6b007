"""What a guard predicted, in TensorBoard, Weights & Biases and a function: with the real packages where they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.samples import transformer
from vramcast.base.errors import UsageError
from vramcast.base.units import GIB
from vramcast.features.guard.metrics import log_to, predicted
from vramcast.features.guard.result import GuardResult
from vramcast.memory import predict


@pytest.fixture
def figures() -> dict[str, float]:
    prediction = predict(transformer())
    found = predicted(GuardResult(name="x", prediction=prediction, room=None, fits=True))
    assert found["vramcast/predicted_device_gib"] == prediction.device_bytes / GIB
    return found


def test_a_function(figures: dict[str, float]) -> None:
    given: list[Any] = []
    log_to(given.append, figures)
    assert given == [figures]
    with pytest.raises(UsageError, match="neither a SummaryWriter"):
        log_to(3, figures)
    log_to(3, {})  # nothing was predicted


def test_tensorboard(figures: dict[str, float], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    log_to(writer, figures, 5)
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    for name, value in figures.items():
        (event,) = events.Scalars(name)
        assert event.step == 5 and event.value == pytest.approx(value, rel=1e-6)


def test_weights_and_biases(figures: dict[str, float], tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    run = wandb.init(project="x", dir=str(tmp_path), mode="offline", settings=wandb.Settings(silent=True))
    log_to(run, figures)
    assert {name: run.summary[name] for name in figures} == figures
    run.finish()


def test_a_trainer_of_hugging_face(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    import torch
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from vramcast.features.guard.hugging_face import VramcastCallback

    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(4)]
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, report_to=["tensorboard"], use_cpu=True, save_strategy="no",
        per_device_train_batch_size=2, disable_tqdm=True,
    )  # fmt: skip
    callback = VramcastCallback(gpu="rtx-4090")
    trainer = transformers.Trainer(model=model, args=args, train_dataset=data, callbacks=[callback])
    trainer.train()
    assert callback.guard is not None and callback.guard.prediction is not None
    expected = callback.guard.prediction.device_bytes / GIB
    logged = [line for line in trainer.state.log_history if "vramcast/predicted_device_gib" in line]
    assert logged and logged[0]["vramcast/predicted_device_gib"] == pytest.approx(expected), json.dumps(logged)
    files = list(Path(tmp_path).rglob("events.out.*"))
    assert files
    events = EventAccumulator(str(files[0].parent))
    events.Reload()
    names = [name for name in events.Tags()["scalars"] if name.endswith("vramcast/predicted_device_gib")]
    assert names and events.Scalars(names[0])[0].value == pytest.approx(expected, rel=1e-6)
