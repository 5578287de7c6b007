"""Models of many kinds, small, from nothing but their config: their usual inputs run and give a loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.errors import UsageError
from vramcast.jobs.load import load_job
from vramcast.jobs.schema import Input
from vramcast.jobs.training.batch import Data
from vramcast.prediction.predict import predict

TEXT = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
IMAGE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 64}
SEQ2SEQ = {
    "vocab_size": 300, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
}  # fmt: skip
WAVE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 32,
    "conv_dim": [32, 32, 32], "conv_stride": [5, 4, 4], "conv_kernel": [10, 8, 4], "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
T5 = {"vocab_size": 300, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1}
WHISPER = {
    "max_source_positions": 50,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
TRANSFORMERS: list[tuple[str, str, dict[str, Any]]] = [
    ("gpt2", "GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 300, "n_positions": 64}),
    ("llama", "LlamaForCausalLM", TEXT),
    ("mistral", "MistralForCausalLM", {**TEXT, "num_key_value_heads": 1}),
    ("qwen2", "Qwen2ForCausalLM", {**TEXT, "num_key_value_heads": 1}),
    ("gemma2", "Gemma2ForCausalLM", {**TEXT, "head_dim": 16, "num_key_value_heads": 1}),
    ("opt", "OPTForCausalLM", {**TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64}),
    ("roberta", "RobertaForMaskedLM", {**TEXT, "max_position_embeddings": 66}),
    ("bert", "BertForSequenceClassification", TEXT),
    ("bert", "BertForQuestionAnswering", TEXT),
    ("bert", "BertModel", TEXT),
    ("distilbert", "DistilBertForTokenClassification", {"vocab_size": 300, "dim": 32, "n_layers": 1, "n_heads": 2}),
    ("bart", "BartForConditionalGeneration", SEQ2SEQ),
    ("t5", "T5ForConditionalGeneration", {**T5, "decoder_start_token_id": 0}),
    ("t5", "T5EncoderModel", T5),
    ("whisper", "WhisperForConditionalGeneration", {**SEQ2SEQ, **WHISPER}),
    ("vit", "ViTForImageClassification", IMAGE),
    ("dinov2", "Dinov2ForImageClassification", {**IMAGE, "patch_size": 16}),
    ("vit_mae", "ViTMAEForPreTraining", {**IMAGE, "decoder_hidden_size": 32, "decoder_num_hidden_layers": 1}),
    ("videomae", "VideoMAEForVideoClassification", {**IMAGE, "num_frames": 4}),
    ("segformer", "SegformerForSemanticSegmentation", {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1]}),
    ("resnet", "ResNetForImageClassification", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}),
    ("wav2vec2", "Wav2Vec2ForCTC", WAVE),
    ("hubert", "HubertForSequenceClassification", WAVE),
    (
        "llava",
        "LlavaForConditionalGeneration",
        {
            "image_token_index": 299,
            "text_config": {**TEXT, "model_type": "llama"},
            "vision_config": {**IMAGE, "model_type": "clip_vision_model", "patch_size": 32},
        },
    ),
    (
        "paligemma",
        "PaliGemmaForConditionalGeneration",
        {
            "image_token_index": 300,
            "projection_dim": 32,
            "text_config": {**TEXT, "model_type": "gemma", "head_dim": 16, "num_key_value_heads": 1},
            "vision_config": {**IMAGE, "model_type": "siglip_vision_model", "patch_size": 32},
        },
    ),
    (
        "gemma3",
        "Gemma3ForConditionalGeneration",
        {
            "image_token_index": 299,
            "mm_tokens_per_image": 4,
            "text_config": {**TEXT, "model_type": "gemma3_text", "head_dim": 16, "num_key_value_heads": 1},
            "vision_config": {**IMAGE, "model_type": "siglip_vision_model", "patch_size": 16},
        },
    ),
    (
        "mllama",
        "MllamaForConditionalGeneration",
        {
            "text_config": {
                **TEXT,
                "num_hidden_layers": 2,
                "cross_attention_layers": [1],
                "num_key_value_heads": 1,
                "pad_token_id": 0,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
            },
            "vision_config": {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_global_layers": 1,
                "attention_heads": 2,
                "intermediate_size": 64,
                "image_size": 64,
                "patch_size": 32,
                "vision_output_dim": 64,
                "intermediate_layers_indices": [1],
            },
        },
    ),
    ("clip", "CLIPModel", {"text_config": {**TEXT, "bos_token_id": 0, "eos_token_id": 1}, "vision_config": IMAGE}),
]
SMALL = {
    "sizes.batch": 2, "sizes.sequence": 16, "sizes.height": 64, "sizes.width": 64, "sizes.frames": 5,
}  # fmt: skip

BLOCKS = {
    "block_out_channels": [32, 64], "layers_per_block": 1, "sample_size": 16, "in_channels": 4, "out_channels": 4,
}  # fmt: skip
DIFFUSERS: list[tuple[str, dict[str, Any]]] = [
    (
        "UNet2DModel",
        {
            **BLOCKS, "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
            "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
        },
    ),
    (
        "UNet2DConditionModel",
        {
            **BLOCKS, "cross_attention_dim": 32, "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
            "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
        },
    ),
    ("AutoencoderKL", {"block_out_channels": [32], "sample_size": 32, "latent_channels": 4}),
    (
        "SD3Transformer2DModel",
        {"num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 4, "joint_attention_dim": 32,
         "caption_projection_dim": 32, "pooled_projection_dim": 64, "sample_size": 32},
    ),
    ("DiTTransformer2DModel", {"num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 4, "out_channels": 8}),
    (
        "PixArtTransformer2DModel",
        {"num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 4, "caption_channels": 32, "sample_size": 32,
         "cross_attention_dim": 32},
    ),
    (
        "WanTransformer3DModel",
        {"num_layers": 2, "attention_head_dim": 12, "num_attention_heads": 2, "text_dim": 32, "ffn_dim": 64},
    ),
    (
        "FluxTransformer2DModel",
        {"num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
         "joint_attention_dim": 32, "pooled_projection_dim": 32, "in_channels": 16, "axes_dims_rope": [4, 4, 8]},
    ),
    (
        "CogVideoXTransformer3DModel",
        {"num_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2, "text_embed_dim": 32,
         "time_embed_dim": 16,
         "use_rotary_positional_embeddings": True, "max_text_seq_length": 16},
    ),
]  # fmt: skip


def test_places_of_an_image_lead_each_row() -> None:
    words = Input(shape=["batch", "sequence"], dtype="int64", below=9, leading="sequence // 2", leading_value=9)
    rows = Data({"words": words}, {"batch": 2, "sequence": 4})._host["words"]
    assert rows[:, :2].tolist() == [[9, 9], [9, 9]] and rows[:, 2:].max() < 9
    with pytest.raises(UsageError, match=r"5 places .* do not fit a row of 4"):
        Data({"words": words.model_copy(update={"leading": 5})}, {"batch": 2, "sequence": 4})


@pytest.mark.parametrize(("model_type", "class_name", "config"), TRANSFORMERS, ids=[one[1] for one in TRANSFORMERS])
def test_transformers(model_type: str, class_name: str, config: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    document = {"model_type": model_type, "architectures": [class_name], **config}
    (tmp_path / "config.json").write_text(json.dumps(document))
    result = predict(load_job(str(tmp_path), SMALL), "rtx-4090", steps=2)
    assert result.prediction.steps == 2
    assert result.parameters.count >= result.parameters.trained_count > 0


@pytest.mark.parametrize(("class_name", "config"), DIFFUSERS, ids=[one[0] for one in DIFFUSERS])
@pytest.mark.parametrize("precision", ["bf16", "pure-bf16"])
def test_diffusers(class_name: str, config: dict[str, Any], precision: str, tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": class_name, **config}))
    result = predict(load_job(str(tmp_path), {**SMALL, "precision": precision}), "rtx-4090", steps=2)
    assert result.prediction.steps == 2
    assert result.parameters.trained_count > 0


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("timm", "resnet18"),
        ("timm", "vit_tiny_patch16_224"),
        ("torchvision", "resnet18"),
        ("torchvision", "lraspp_mobilenet_v3_large"),
        ("torchvision", "r3d_18"),
    ],
)
def test_vision_libraries(library: str, name: str) -> None:
    pytest.importorskip(library)
    job = {"components": {"model": {library: name}}, "sizes": {"batch": 2}}
    assert predict(job, "rtx-4090", steps=2).prediction.steps == 2


def test_a_frozen_text_encoder_feeds_the_model(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(
        json.dumps(
            {"model_type": "t5", "architectures": ["T5EncoderModel"], "vocab_size": 300, "d_model": 64, "d_ff": 64}
        )
    )
    job = {
        "components": {
            "text": {
                "transformers": str(tmp_path),
                "mode": "frozen",
                "dtype": "bf16",
                "inputs": {"input_ids": "prompt"},
            },
            "model": {"factory": "tests.jobs.tiny:mixer", "inputs": {"x": "text.last_hidden_state"}, "dtype": "bf16"},
        },
        "inputs": {
            "prompt": {"shape": ["batch", 8], "dtype": "int64", "below": 300},
            "labels": {"shape": ["batch", 8], "dtype": "int64", "below": 10},
        },
        "sizes": {"batch": 2},
    }
    result = predict(job, "rtx-4090")
    parts = {node.name: node for node in result.parameters.children}
    assert parts["text"].trained_count == 0
    assert parts["model"].trained_count == parts["model"].count
