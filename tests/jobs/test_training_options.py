"""Every setting of a job against the same written by hand: the allocations are equal, one by one."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.jobs.tiny import JOB, ConvNet, Mixer, features
from vramcast.card.compiled.compiler import why_not
from vramcast.card.device.context import virtual_gpu
from vramcast.errors import CannotPredict, UsageError
from vramcast.memory import predict as predict_trace
from vramcast.prediction.predict import predict
from vramcast.trace import StepTrace

CARD = "rtx-4090"
BATCH = 512


def _traced(changes: dict[str, Any]) -> StepTrace:
    trace = predict(JOB | changes, CARD).trace
    assert trace is not None
    return trace


def _figures(trace: StepTrace) -> tuple[list[int], int]:
    """What was asked for in turn, and the peak, which tells when things were let go of."""
    return list(trace.requested_bytes), predict_trace(trace).peak_allocated_bytes


def _batch() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(BATCH, 64), "labels": torch.randint(0, 10, (BATCH,))}


def _to_card(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to("cuda") for name, tensor in batch.items()}


def _script(
    *,
    model: Callable[[], nn.Module] = Mixer,
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.AdamW(p, lr=1e-4),
    autocast: torch.dtype | None = None,
    scaler: bool = False,
    clip: float | None = None,
    accumulate: int = 1,
    prepare: Callable[[nn.Module], Callable[[], None]] = lambda model: lambda: None,
    between: Callable[[nn.Module], None] = lambda model: None,
) -> StepTrace:
    """A plain loop, with what each test changes."""
    data = _batch()
    with virtual_gpu(CARD) as gpu:
        net = model().to("cuda")
        after_step = prepare(net)
        update = optimizer([p for p in net.parameters() if p.requires_grad])
        scale = torch.amp.GradScaler("cuda") if scaler else None
        for step in range(3):
            update.zero_grad()
            for _ in range(accumulate):
                batch = _to_card(data)
                with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
                    output = net(batch["x"])
                    loss = F.cross_entropy(output, batch["labels"])
                if accumulate > 1:
                    loss = loss / accumulate
                (loss if scale is None else scale.scale(loss)).backward()
            if scale is not None and clip is not None:
                scale.unscale_(update)
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            if scale is None:
                update.step()
            else:
                scale.step(update)
                scale.update()
            after_step()
            if step == 0:
                between(net)
    del output, batch
    return gpu.trace()


class _UpdatesInBackward:
    """As torchtune's optimizer_in_bwd: an optimizer for each parameter, called by a hook."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._of = {parameter: torch.optim.AdamW([parameter], lr=1e-4) for parameter in parameters}
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._update)

    def _update(self, parameter: torch.Tensor) -> None:
        self._of[parameter].step()  # type: ignore[index]
        self._of[parameter].zero_grad()  # type: ignore[index]

    def zero_grad(self) -> None: ...

    def step(self) -> None: ...


def _checkpointed() -> nn.Module:
    net = Mixer()
    for block in net.blocks:
        block.forward = _checkpoint(block.forward)  # type: ignore[method-assign]
    return net


def _checkpoint(forward: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return lambda *args: checkpoint(forward, *args, use_reentrant=False)


def _partly_frozen() -> nn.Module:
    net = Mixer()
    for name, parameter in net.named_parameters():
        if "stem" in name or name.startswith("blocks.0."):
            parameter.requires_grad_(False)
    return net


def _compiled(model: nn.Module) -> Callable[[], None]:
    model.compile()
    return lambda: None


def _averaged(net: nn.Module) -> Callable[[], None]:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    return lambda: average.update_parameters(net)


def _averaged_in_a_loop(net: nn.Module) -> Callable[[], None]:
    kept = copy.deepcopy(net).requires_grad_(False)

    def update() -> None:
        with torch.no_grad():
            for old, new in zip(kept.parameters(), net.parameters(), strict=True):
                old.mul_(0.999).add_(new.detach(), alpha=1 - 0.999)

    return update


def _averaged_at_once(net: nn.Module) -> Callable[[], None]:
    """As diffusers' EMAModel with foreach."""
    kept = copy.deepcopy(net).requires_grad_(False)

    def update() -> None:
        with torch.no_grad():
            averaged, new = list(kept.parameters()), list(net.parameters())
            torch._foreach_sub_(averaged, torch._foreach_sub(averaged, new), alpha=0.001)

    return update


def _evaluated(net: nn.Module) -> None:
    net.eval()
    data = {"x": torch.randn(2 * BATCH, 64), "labels": torch.randint(0, 10, (2 * BATCH,))}
    with torch.no_grad():
        batch = _to_card(data)
        output = net(batch["x"])
        F.cross_entropy(output, batch["labels"])
    net.train()


@pytest.mark.parametrize(
    ("changes", "script"),
    [
        pytest.param({}, lambda: _script(), id="plain"),
        pytest.param({"precision": "bf16"}, lambda: _script(autocast=torch.bfloat16), id="bf16"),
        pytest.param(
            {"precision": "fp16", "gradient_clipping": 1.0},
            lambda: _script(autocast=torch.float16, scaler=True, clip=1.0),
            id="fp16-scaler-clip",
        ),
        pytest.param({"accumulation": 2}, lambda: _script(accumulate=2), id="accumulation"),
        pytest.param(
            {"optimizer": {"name": "sgd", "arguments": {"lr": 0.1, "momentum": 0.9}}},
            lambda: _script(optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
            id="sgd",
        ),
        pytest.param(
            {"optimizer": {"name": "Adam", "arguments": {"fused": True, "betas": [0.9, 0.99]}}},
            lambda: _script(optimizer=lambda p: torch.optim.Adam(p, lr=1e-4, fused=True, betas=(0.9, 0.99))),
            id="fused-adam",
        ),
        pytest.param(
            {"optimizer": {"name": "adamw", "in_backward": True}},
            lambda: _script(optimizer=_UpdatesInBackward),
            id="in-backward",
        ),
        pytest.param({"checkpointing": "all"}, lambda: _script(model=_checkpointed), id="checkpointing-all"),
        pytest.param(
            {"checkpointing": {"scope": "modules", "modules": ["blocks.?"]}},
            lambda: _script(model=_checkpointed),
            id="checkpointing-by-pattern",
        ),
        pytest.param(
            {"components": {"model": {"factory": "tests.jobs.tiny:mixer", "freeze": ["stem", "blocks.0.*"]}}},
            lambda: _script(model=_partly_frozen),
            id="frozen-keys",
        ),
        pytest.param({"ema": True}, lambda: _script(prepare=_averaged), id="ema"),
        pytest.param({"ema": {"update": "loop"}}, lambda: _script(prepare=_averaged_in_a_loop), id="ema-loop"),
        pytest.param({"ema": {"update": "differences"}}, lambda: _script(prepare=_averaged_at_once), id="ema-at-once"),
        pytest.param(
            {"evaluation": {"when": "between", "batch": 2 * BATCH}},
            lambda: _script(between=_evaluated),
            id="evaluation",
        ),
        pytest.param(
            {"torch_compile": True},
            lambda: _script(prepare=_compiled),
            id="compiled",
            marks=pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
        ),
    ],
)
def test_a_setting_takes_what_the_script_takes(changes: dict[str, Any], script: Callable[[], StepTrace]) -> None:
    by_job, by_hand = _traced(changes), script()
    assert list(by_job.requested_bytes) == list(by_hand.requested_bytes)
    assert list(by_job.event_kind) == list(by_hand.event_kind)


def test_data_parallel_counts_its_buckets() -> None:
    def parallel() -> Iterator[int]:
        for changes in ({}, {"gpus": 4}, {"gpus": {"count": 4, "gradient_as_bucket_view": True}}):
            yield predict(JOB | changes | {"sizes": {"batch": 8}}, CARD).peak_allocated_bytes

    one, four, as_view = parallel()
    gradients = sum(p.numel() * 4 for p in Mixer().parameters())
    assert four > one + 0.9 * gradients
    assert as_view < four - 0.9 * gradients


def test_a_global_batch_is_divided() -> None:
    without = {key: value for key, value in JOB.items() if key != "sizes"}
    divided = predict(without | {"gpus": {"count": 4, "global_batch": 4 * BATCH}}, CARD)
    assert divided.sizes["batch"] == BATCH
    assert divided.peak_allocated_bytes == predict(JOB | {"gpus": 4}, CARD).peak_allocated_bytes
    assert divided.samples_per_step == 4 * BATCH


def test_a_loss_network_and_a_teacher() -> None:
    job = {
        "components": {
            "vgg": {"factory": "tests.jobs.tiny:features", "mode": "frozen", "role": "loss-network"},
            "teacher": {"copy_of": "model", "mode": "frozen", "inputs": ["low"]},
            "model": {"factory": "tests.jobs.tiny:conv_net", "inputs": ["low"]},
        },
        "inputs": {name: {"shape": ["batch", 3, "height", "height"]} for name in ("low", "high")},
        "sizes": {"batch": 2, "height": 64},
        "loss": [
            {"kind": "charbonnier", "target": "high"},
            {"kind": "l1", "target": "high", "network": "vgg", "weight": 0.1},
            {"kind": "mse", "target": "teacher"},
        ],
    }
    job["components"] = {name: job["components"][name] for name in ("vgg", "model", "teacher")}  # type: ignore[index]
    by_job = predict(job, CARD).trace
    assert by_job is not None
    low, high = torch.randn(2, 3, 64, 64), torch.randn(2, 3, 64, 64)
    with virtual_gpu(CARD) as gpu:
        vgg = features().requires_grad_(False).eval().to("cuda")
        model = ConvNet().to("cuda")
        teacher = ConvNet().requires_grad_(False).eval().to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for _ in range(3):
            optimizer.zero_grad()
            batch = _to_card({"low": low, "high": high})
            output = model(batch["low"])
            with torch.no_grad():
                wanted = teacher(batch["low"])
            loss = _three_terms(output, wanted, batch["high"], vgg)
            loss.backward()
            optimizer.step()
    del output, wanted, batch
    assert list(by_job.requested_bytes) == list(gpu.trace().requested_bytes)


def _three_terms(output: torch.Tensor, wanted: torch.Tensor, high: torch.Tensor, vgg: nn.Module) -> torch.Tensor:
    total = _charbonnier(output, high)
    features_loss = _in_features(output, high, vgg)
    total = total + 0.1 * features_loss
    return total + F.mse_loss(output, wanted)


def _charbonnier(output: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    difference = output - high
    return torch.mean(torch.sqrt(difference * difference + 1e-9))


def _in_features(output: torch.Tensor, high: torch.Tensor, vgg: nn.Module) -> torch.Tensor:
    return F.l1_loss(vgg(output), vgg(high))


def test_a_step_of_ones_own() -> None:
    result = predict(
        {"step": {"factory": "tests.jobs.tiny:step", "arguments": {"width": 32}}, "sizes": {"batch": 8}}, CARD
    )
    assert result.prediction.steps == 3
    assert result.fits


def test_inference_needs_less() -> None:
    training, inference = predict(JOB, CARD), predict(JOB | {"task": "inference"}, CARD)
    assert inference.peak_allocated_bytes < training.peak_allocated_bytes
    assert inference.parameters.gradients_bytes == inference.parameters.optimizer_bytes == 0
    assert inference.account.part("gradients") == inference.account.part("optimizer state") == 0


def test_outputs_that_live_longer_take_more() -> None:
    peaks = [
        predict(JOB | {"outputs_live_until": until}, CARD).peak_allocated_bytes
        for until in ("forward", "step", "next-step")
    ]
    assert peaks == sorted(peaks)


def test_batch_and_outputs_live_as_long_as_is_said() -> None:
    """A step in a function of its own: the model's outputs go with the loss, the batch with the function."""
    data = _batch()

    def loss_of(net: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(net(batch["x"]), batch["labels"])

    with virtual_gpu(CARD) as gpu:
        net = Mixer().to("cuda")
        update = torch.optim.AdamW(net.parameters(), lr=1e-4)

        def step() -> None:
            update.zero_grad()
            batch = _to_card(data)
            loss = loss_of(net, batch)
            loss.backward()
            update.step()

        for _ in range(3):
            step()
    job = _traced({"outputs_live_until": "forward", "batch_lives_until": "step"})
    assert _figures(job) == _figures(gpu.trace())


def test_what_a_forward_function_returns_replaces_the_old_when_it_ends() -> None:
    data = _batch()

    def forward(net: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        output = net(batch["x"])
        return F.cross_entropy(output, batch["labels"], label_smoothing=0.1), output

    with virtual_gpu(CARD) as gpu:
        net = Mixer().to("cuda")
        update = torch.optim.AdamW(net.parameters(), lr=1e-4)
        for _ in range(3):
            update.zero_grad()
            batch = _to_card(data)
            result = forward(net, batch)
            loss = result[0]
            loss.backward()
            update.step()
    smooth = {"kind": "cross-entropy", "label_smoothing": 0.1}
    assert _figures(_traced({"forward_function": True, "loss": smooth})) == _figures(gpu.trace())


def test_the_same_network_called_twice_holds_one_set_of_weights() -> None:
    parts = {
        "first": {"factory": "tests.jobs.tiny:mixer", "inputs": ["x"]},
        "second": {"same_as": "first", "inputs": ["x"]},
    }
    loss = [{"kind": "mean", "prediction": "first"}, {"kind": "mean", "prediction": "second"}]
    large = JOB | {"sizes": {"batch": 50_000}}
    once, twice = (predict(large | more, CARD) for more in ({"loss": "mean"}, {"components": parts, "loss": loss}))
    assert twice.parameters.count == once.parameters.count
    assert twice.parameters.optimizer_bytes == once.parameters.optimizer_bytes
    assert twice.peak_allocated_bytes > 1.5 * once.peak_allocated_bytes


def test_built_on_the_card_and_cast_there() -> None:
    data = _batch()["x"].bfloat16()
    with virtual_gpu(CARD) as gpu:
        with torch.device("cuda"):
            net = Mixer()
        net = net.to(torch.bfloat16)
        update = torch.optim.AdamW(net.parameters(), lr=1e-4)
        for _ in range(3):
            update.zero_grad()
            x = data.to("cuda")
            output = net(x)
            loss = output.mean()
            loss.backward()
            update.step()
    job = {
        "components": {"model": {"factory": "tests.jobs.tiny:mixer", "built_on": "gpu"}},
        "inputs": {"x": {"shape": ["batch", 64], "dtype": "bf16"}}, "loss": "mean", "precision": "pure-bf16",
    }  # fmt: skip
    assert _figures(_traced(job)) == _figures(gpu.trace())


def test_prepare_calls_methods_of_the_model() -> None:
    part = {"factory": "tests.jobs.tiny:mixer", "prepare": ["half"]}
    job = {"components": {"model": part}, "inputs": {"x": {"shape": ["batch", 64], "dtype": "fp16"}}, "loss": "mean"}
    assert predict(JOB | job, CARD).parameters.weights_bytes == 2 * predict(JOB, CARD).parameters.count
    with pytest.raises(UsageError, match="did you mean 'half'"):
        predict(JOB | {"components": {"model": part | {"prepare": ["halff"]}}}, CARD)


def test_distillation() -> None:
    parts = {
        "teacher": {"factory": "tests.jobs.tiny:mixer", "mode": "frozen", "role": "teacher", "inputs": ["x"]},
        "student": {"factory": "tests.jobs.tiny:mixer", "arguments": {"depth": 1}, "inputs": ["x"]},
    }
    loss = [{"kind": "distillation", "target": "teacher", "temperature": 4}, {"kind": "cross-entropy"}]
    result = predict(JOB | {"components": parts, "loss": loss}, CARD)
    assert 0 < result.parameters.trained_count < result.parameters.count
    with pytest.raises(UsageError, match="temperature"):
        predict(JOB | {"loss": {"kind": "mse", "temperature": 4.0}}, CARD)


def test_channels_last_on_the_card_makes_a_second_tensor() -> None:
    def job(reference: str) -> dict[str, Any]:
        part = {"factory": "tests.jobs.tiny:conv_net", "channels_last": True, "inputs": [reference]}
        return {"components": {"model": part}, "inputs": {"image": {"shape": ["batch", 3, 64, 64]}}, "loss": "mean"}

    plain, converted = (_traced(job(name)) for name in ("image", "image.channels_last()"))
    image = BATCH * 3 * 64 * 64 * 4
    # Where the input is not in that layout already, the convolution makes its own copy.
    assert list(converted.requested_bytes).count(image) >= 2 * 3
    assert list(plain.requested_bytes).count(image) >= 2 * 3


def test_what_does_not_fit_is_known_in_full() -> None:
    small = JOB | {"sizes": {"batch": 400_000}}
    result = predict(small, "4GiB")
    assert not result.fits
    assert not result.prediction.at_least
    assert result.parameters.optimizer_bytes >= 2 * result.parameters.weights_bytes
    roomy = predict(small, "40GiB")
    assert roomy.fits
    assert result.peak_allocated_bytes == roomy.peak_allocated_bytes


@pytest.mark.parametrize("batch", [512, 60_000, 130_000, 145_000])
def test_the_verdict_is_the_same_in_the_list_of_cards(batch: int) -> None:
    result = predict(JOB | {"sizes": {"batch": batch}}, "rtx-3070")
    listed = next(card for card in result.cards if card.gpu.id == result.gpu.id)
    assert (listed.fits, listed.device_bytes) == (result.fits, result.device_bytes)


@pytest.mark.parametrize(
    "gpus",
    [
        {"count": 2, "strategy": "deepspeed", "zero_stage": 2, "offload_optimizer": True},
        {"count": 2, "offload_parameters": True},
    ],
)
def test_what_is_not_modelled_says_so(gpus: dict[str, Any]) -> None:
    with pytest.raises(CannotPredict, match="not modelled"):
        predict(JOB | {"gpus": gpus}, CARD)


def test_the_parameters_add_up() -> None:
    result = predict(JOB | {"optimizer": "adamw"}, CARD)
    root = result.parameters
    assert root.count == sum(p.numel() for p in Mixer().parameters())
    for node in root.walk():
        assert node.count >= sum(child.count for child in node.children)
    assert root.weights_bytes == root.gradients_bytes == root.count * 4
    assert root.optimizer_bytes == 2 * root.weights_bytes
    assert result.account.part("weights") == root.weights_bytes


def test_lora_trains_only_the_adapters() -> None:
    pytest.importorskip("peft")
    lora = {"factory": "tests.jobs.tiny:mixer", "mode": "lora", "lora": {"rank": 4, "targets": ["up", "down"]}}
    result = predict(JOB | {"components": {"model": lora}}, CARD)
    assert result.parameters.trained_count == 3 * 2 * 4 * (256 + 1024)


@pytest.mark.parametrize(("kind", "bits"), [("nf4", 4), ("int8", 8)])
def test_quantized_weights(kind: str, bits: int) -> None:
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    model = {
        "factory": "tests.jobs.tiny:mixer", "arguments": {"width": 512}, "mode": "lora", "quantization": kind,
        "lora": {"rank": 4, "targets": ["up", "down"]}, "dtype": "bf16",
    }  # fmt: skip
    plain = {key: value for key, value in model.items() if key != "quantization"}
    result, other = (predict(JOB | {"components": {"model": one}, "precision": "bf16"}, CARD) for one in (model, plain))
    assert result.parameters.count == other.parameters.count
    linear = 64 * 512 + 3 * 2 * 512 * 2048 + 512 * 10
    saved = other.parameters.weights_bytes - result.parameters.weights_bytes
    biases = 512 + 3 * (2048 + 512) + 10  # bitsandbytes turns them into the dtype of the input
    assert 0 <= linear * (16 - bits) // 8 - saved <= 2 * biases


def test_experts_that_transformers_fuses(tmp_path: Path) -> None:
    """bitsandbytes replaces linear layers alone (transformers/integrations/bitsandbytes.py): experts stay whole unless
    somebody quantizes them."""
    pytest.importorskip("bitsandbytes")
    config = {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "num_local_experts": 4,
        "num_experts_per_tok": 2, "vocab_size": 128,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = {"transformers": str(tmp_path), "mode": "lora", "quantization": "nf4", "dtype": "bf16"}
    model |= {"lora": {"rank": 4, "targets": ["q_proj", "v_proj"]}}
    job = {"precision": "bf16", "sizes": {"batch": 1, "sequence": 16}}
    whole, four = (
        predict(job | {"components": {"model": model | {"quantize_experts": wanted}}}, CARD) for wanted in (False, True)
    )
    if "experts" not in {note.topic for note in whole.prediction.notes}:
        pytest.skip("this version of transformers has linear layers as experts")
    experts = 2 * 4 * 3 * 64 * 128
    assert whole.parameters.count == four.parameters.count
    assert whole.parameters.weights_bytes - four.parameters.weights_bytes == experts * 2 - experts // 2
    assert "experts" not in {note.topic for note in four.prediction.notes}
    model |= {"quantization": "none", "lora": model["lora"] | {"parameters": ["experts.down_proj"]}}
    adapted = predict(job | {"components": {"model": model}}, CARD)
    assert adapted.parameters.count - whole.parameters.count == 2 * 4 * 4 * (64 + 128), "peft's target_parameters"
    model["lora"]["parameters"] = ["experts.down_poj"]
    with pytest.raises(UsageError, match=r"no parameter 'experts\.down_poj'; did you mean"):
        predict(job | {"components": {"model": model}}, CARD)


def test_dora_adds_a_length_for_each_output() -> None:
    pytest.importorskip("peft")
    model = {"factory": "tests.jobs.tiny:mixer", "arguments": {"width": 512}, "mode": "lora", "dtype": "bf16"}
    lora = {"rank": 4, "targets": ["up", "down"]}
    plain, dora = (
        predict(JOB | {"components": {"model": model | {"lora": one}}, "precision": "bf16"}, CARD)
        for one in (lora, lora | {"dora": True})
    )
    assert dora.parameters.count - plain.parameters.count == 3 * (2048 + 512)
    assert dora.device_bytes > plain.device_bytes


def test_the_page_for_a_notebook() -> None:
    page = predict(JOB, CARD)._repr_html_()
    assert page.startswith("<div")
    assert "Fits" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("more", "message"),
    [({"accumulation": 2}, "accumulation must be 1"), ({"gradient_clipping": 1.0}, "gradient_clipping"),
     ({"precision": "fp16"}, "GradScaler"), ({"gpus": 2}, "one GPU")],
)  # fmt: skip
def test_what_updates_in_the_backward_pass_cannot_have(more: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"in_backward: .*{message}"):
        predict(JOB | {"optimizer": {"name": "adamw", "in_backward": True}} | more, CARD)


def test_updates_in_the_backward_pass_are_one_step() -> None:
    trace = _traced({"optimizer": {"name": "adamw", "in_backward": True}})
    usual = _traced({})
    assert trace.steps == usual.steps == 3
    assert predict_trace(trace).peak_allocated_bytes < predict_trace(usual).peak_allocated_bytes


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_state_in_8_bits_of_torchao_is_counted_as_it_is_stored() -> None:
    """Codes of one byte and a scale for 256 of them, twice; small tensors stay in fp32. The largest are rounded."""
    pytest.importorskip("torchao")
    result = predict(JOB | {"optimizer": {"name": "torchao-adamw8bit"}}, CARD)
    count = result.parameters.count
    assert 2 * count * (1 + 4 / 256) <= result.parameters.optimizer_bytes <= 2.1 * count
