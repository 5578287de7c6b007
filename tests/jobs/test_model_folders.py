"""From a folder with config.json only: the right number of parameters, and to the byte what a script takes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("diffusers")

from tests.jobs import by_hand
from tests.jobs.by_hand import CARD, FOLDERS
from vramcast.jobs.load import load_job
from vramcast.memory import predict as predict_trace
from vramcast.prediction.job_prediction import JobPrediction
from vramcast.prediction.predict import predict
from vramcast.trace import StepTrace

PURE = {"precision": "pure-bf16", "checkpointing": "all"}


def _predicted(folder: str, overrides: dict[str, Any]) -> JobPrediction:
    return predict(load_job(str(FOLDERS / folder), overrides), CARD)


no_peft = importlib.util.find_spec("peft") is None
LORA = {
    "components.model.mode": "lora",
    "components.model.lora": {"rank": 8, "dropout": 0.05, "targets": ["q_proj", "v_proj"]},
    "components.model.dtype": "bf16",
    "components.model.config.num_hidden_layers": 4,
    "checkpointing": "all",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "overrides", "count", "script"),
    [
        pytest.param(
            "llama-2-7b", {"sizes.batch": 1, "sizes.sequence": 1024}, 6_738_415_616,
            lambda: by_hand.llama(1, 1024), id="llama-2-7b",
        ),
        pytest.param(
            "llama-2-7b", {**LORA, "sizes.batch": 2, "sizes.sequence": 512}, 1_072_205_824,
            lambda: by_hand.llama_lora(2, 512, 4), id="llama-lora", marks=pytest.mark.skipif(no_peft, reason="no peft"),
        ),
        pytest.param(
            "bert-base", {"sizes.batch": 4, "sizes.sequence": 200}, 109_514_298,
            lambda: by_hand.bert(4, 200), id="bert-base",
        ),
        pytest.param(
            "t5-base", {"sizes.batch": 2, "sizes.sequence": 256, "sizes.target_sequence": 60}, 222_903_552,
            lambda: by_hand.t5(2, 256, 60), id="t5-base",
        ),
        pytest.param("vit-base", {"sizes.batch": 8}, 86_567_656, lambda: by_hand.vit(8), id="vit-base"),
        pytest.param(
            "whisper-small", {"sizes.batch": 2, "sizes.sequence": 100}, 241_734_912,
            lambda: by_hand.whisper(2, 100), id="whisper-small",
        ),
        pytest.param(
            "sd15-unet", {"sizes.batch": 2, "sizes.height": 256, "sizes.width": 256}, 859_520_964,
            lambda: by_hand.unet("sd15-unet", 2, 256), id="sd15-unet",
        ),
        pytest.param(
            "sdxl-unet", {"sizes.batch": 1, "sizes.height": 256, "sizes.width": 256}, 2_567_463_684,
            lambda: by_hand.unet("sdxl-unet", 1, 256), id="sdxl-unet", marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "flux-dev/transformer",
            {**PURE, "sizes.batch": 1, "sizes.height": 512, "sizes.width": 512}, 11_901_408_320,
            lambda: by_hand.flux(1, 512, 19), id="flux-dev", marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "cogvideox-5b",
            {**PURE, "sizes.batch": 4, "sizes.frames": 17, "sizes.height": 256, "sizes.width": 256}, 10_548_177_635,
            lambda: by_hand.cogvideox(4, 17, 256), id="cogvideox-5b", marks=pytest.mark.exhaustive,
        ),
    ],
)  # fmt: skip
def test_a_folder_is_predicted_like_the_script(
    folder: str, overrides: dict[str, Any], count: int, script: Callable[[], StepTrace]
) -> None:
    predicted = _predicted(folder, overrides)
    assert predicted.parameters.count == count
    by_hand_trace = script()
    written = predict_trace(by_hand_trace)
    assert predicted.peak_allocated_bytes == written.peak_allocated_bytes
    assert predicted.peak_reserved_bytes == written.peak_reserved_bytes
    assert predicted.device_bytes == written.device_bytes
    trace = predicted.trace
    assert trace is not None
    assert list(trace.requested_bytes) == list(by_hand_trace.requested_bytes)


def test_the_parts_of_a_pipeline_are_counted() -> None:
    pytest.importorskip("bitsandbytes")
    predicted = _predicted(
        "cogvideox-5b",
        {**PURE, "sizes.batch": 1, "sizes.frames": 5, "sizes.height": 64, "sizes.width": 64, "optimizer": "adamw8bit"},
    )
    parts = {node.name: node.count for node in predicted.parameters.children}
    assert parts == {"text_encoder": 4_762_310_656, "vae": 215_583_907, "transformer": 5_570_283_072}
    assert sum(parts.values()) == predicted.parameters.count


def test_what_is_assumed_of_a_pipeline_names_its_own_part() -> None:
    """The option in the sentence can be pasted as it is."""
    loaded = load_job(str(FOLDERS / "cogvideox-5b"))
    assert any(
        "all weights of transformer are trained (--set components.transformer.mode=lora)" in str(note.text)
        for note in loaded.notes
    )
    changed = load_job(str(FOLDERS / "cogvideox-5b"), {"components.transformer.mode": "lora"})
    assert changed.job.components["transformer"].mode == "lora"
