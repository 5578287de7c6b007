"""The guard with the real libraries: a tiny model is trained on the CPU, and predicted as on the virtual card."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import vramcast
from vramcast.base.units import MIB
from vramcast.errors import DoesNotFit, UsageError
from vramcast.features.guard import watch
from vramcast.memory import Prediction

CARD = "rtx-4090"


def on_the_card(train: Callable[[], object]) -> Prediction:
    """The script itself, run on the virtual card."""
    with vramcast.virtual_gpu(CARD) as card:
        train()
    return card.prediction()


def same(found: Prediction | None, expected: Prediction) -> None:
    assert found is not None
    assert found.peak_reserved_bytes == expected.peak_reserved_bytes
    assert found.device_bytes == expected.device_bytes
    assert found.peak_allocated_bytes == pytest.approx(expected.peak_allocated_bytes, rel=0.002)


# -- Hugging Face ------------------------------------------------------------------------------------------------


class Tokens(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 50, (32,))
        return {"input_ids": tokens, "labels": tokens}


def trainer(tmp_path: Path, *callbacks: Any, kind: Any = None, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=16, max_steps=3, report_to=[], save_strategy="no",
        disable_tqdm=True, logging_strategy="no", dataloader_pin_memory=False, **options,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    made = (kind or transformers.Trainer)(model=model, args=args, train_dataset=Tokens(), callbacks=list(callbacks))
    made.remove_callback(transformers.PrinterCallback)
    return made


def test_a_trainer_is_predicted_as_it_trains(tmp_path: Path) -> None:
    real = trainer(tmp_path)
    state = {name: value.clone() for name, value in real.model.state_dict().items()}
    random = torch.get_rng_state()
    with vramcast.guard(real, gpu=CARD, quiet=True) as guard:
        assert torch.equal(random, torch.get_rng_state())
        assert all(torch.equal(value, state[name]) for name, value in real.model.state_dict().items())
        assert real.args.device.type == "cpu" and real.args.max_steps == 3 and real.state.global_step == 0
        real.train()
    assert guard.watch.steps == 3 and real.state.global_step == 3
    same(guard.prediction, on_the_card(lambda: trainer(tmp_path).train()))


def test_a_trainer_of_one_s_own_with_its_callback(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    class Own(transformers.Trainer):  # type: ignore[misc, name-defined]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.extra = nn.Linear(8, 8)

        def compute_loss(self, model: Any, inputs: Any, **options: Any) -> Any:
            logits = model(input_ids=inputs["input_ids"]).logits
            return (logits.float() ** 2).mean() + (logits.float() ** 4).mean()

    callback = vramcast.guard.VramcastCallback(gpu=CARD)
    trainer(tmp_path, callback, kind=Own).train()
    assert callback.guard is not None and callback.guard.watch.steps == 3
    same(callback.guard.prediction, on_the_card(lambda: trainer(tmp_path, kind=Own).train()))


def test_a_callback_on_the_cpu_only_watches(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    callback = vramcast.guard.VramcastCallback()
    trainer(tmp_path, callback).train()
    assert callback.guard is not None and callback.guard.fits is None and callback.guard.watch.steps == 3


def test_a_trainer_s_arguments_give_way(tmp_path: Path) -> None:
    real = trainer(tmp_path)
    with vramcast.guard(real, gpu=CARD, quiet=True) as guard:
        assert guard.prediction is not None
    memory = guard.prediction.device_bytes - 2 * MIB
    with vramcast.guard(real, gpu=CARD, memory=memory, fallbacks=["micro-batch"], quiet=True) as guard:
        args = real.args
        assert args is guard.settings and guard.fits
        assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 16
        assert args.per_device_train_batch_size < 16
        real.train()
    assert real.state.global_step == 3 and guard.watch.steps == 3
    with pytest.raises(DoesNotFit, match="Trainer of GPT2LMHeadModel does not fit"):
        trainer(tmp_path, vramcast.guard.VramcastCallback(gpu=CARD, memory="601MiB")).train()
    with pytest.raises(UsageError, match="TrainingArguments has no 'batch'"):
        vramcast.guard(real, gpu=CARD, memory="601MiB", fallbacks=[{"batch": 1}])


# -- Lightning ---------------------------------------------------------------------------------------------------


def fit(accelerator: str, *callbacks: Any) -> Any:
    lightning = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    made = lightning.Trainer(
        accelerator=accelerator, max_steps=3, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=list(callbacks),
    )  # fmt: skip
    data = TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
    module = Classifier()
    made.fit(module, DataLoader(data, batch_size=64))
    return module


@pytest.mark.filterwarnings("ignore")
def test_lightning_is_predicted_as_it_trains() -> None:
    pytest.importorskip("lightning")
    callback = vramcast.guard.LightningVramcastCallback(gpu=CARD)
    module = fit("cpu", callback)
    assert callback.guard.watch.steps == 3 and module.net[0].weight.device.type == "cpu"
    same(callback.guard.prediction, on_the_card(lambda: fit("gpu")))
    too_small = vramcast.guard.LightningVramcastCallback(gpu=CARD, memory="601MiB")
    with pytest.raises(DoesNotFit, match="Lightning's Trainer of Classifier does not fit"):
        fit("cpu", too_small)


# -- accelerate --------------------------------------------------------------------------------------------------


def accelerated(precision: str, guarded: bool) -> Any:
    accelerate = pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator = accelerate.Accelerator(mixed_precision=precision, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    batch = torch.randn(256, 64), torch.randint(0, 10, (256,))

    def training_step(model: Any, optimizer: Any, batch: Any) -> torch.Tensor:
        x, y = (one.to(accelerator.device) for one in batch)
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    guard = None
    if guarded:
        before = accelerator.step, accelerator.sync_gradients, accelerator.device, accelerator.scaler
        guard = vramcast.guard(training_step, model, optimizer, batch, gpu=CARD, steps=6, quiet=True)
        assert before == (accelerator.step, accelerator.sync_gradients, accelerator.device, accelerator.scaler)
        assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    for _ in range(6):
        loss = training_step(model, optimizer, batch)
    del loss
    if guard is not None:
        guard.close()
        assert guard.watch.steps == 3, "of six passes every second makes a step"
    return guard


def test_accelerate_is_predicted_as_it_trains() -> None:
    guard = accelerated("no", guarded=True)
    same(guard.prediction, on_the_card(lambda: accelerated("no", guarded=False)))


# -- the examples ------------------------------------------------------------------------------------------------

EXAMPLES = Path(__file__).parents[3] / "examples" / "guard"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "needs", "flags", "says"),
    [
        ("plain_loop", "torch", (CARD,), "5 steps"),
        ("smaller_if_needed", "torch", ("t4",), "'batch': 32768, 'accumulation': 2"),
        ("offload_if_needed", "torch", ("8GiB",), "'offload': True"),
        ("hf_trainer", "transformers", (CARD,), "trained with batch 8 for 3 steps"),
        ("lightning_callback", "lightning", (CARD,), "3 steps"),
        ("accelerate_diffusers", "diffusers", (CARD,), "3 optimizer steps"),
    ],
)
def test_an_example(
    name: str, needs: str, flags: tuple[str, ...], says: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip(needs)
    if needs == "diffusers":
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(True)
    monkeypatch.setattr(sys, "argv", [name, "--gpu", *flags])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    out, err = capsys.readouterr()
    assert says in out and " fits: needs " in err
    for left in list(watch._watching):  # a script ends without closing its guard
        left.stop()


def test_every_example_is_listed() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"`{path.name}`" in text for path in EXAMPLES.glob("*.py"))
