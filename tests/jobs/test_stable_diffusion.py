"""Commands of diffusers' training scripts and of kohya's sd-scripts, compared with what the scripts do."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

import vramcast
from vramcast.errors import CannotPredict, UsageError
from vramcast.jobs.building import diffusers_folder
from vramcast.jobs.building.lora import add_adapters
from vramcast.jobs.editing.rewrite import rewrite
from vramcast.jobs.load import LoadedJob, load_job
from vramcast.jobs.readers import Request, stable_diffusion
from vramcast.jobs.schema import Component

pytest.importorskip("diffusers")
MEASURED = Path(__file__).parents[2] / "lab" / "zoo" / "measured.json"
SD15 = "--pretrained_model_name_or_path stable-diffusion-v1-5/stable-diffusion-v1-5"


def command(text: str) -> LoadedJob:
    return load_job(None, request=Request(arguments=tuple(text.split())))


def note(loaded: LoadedJob, topic: str) -> str:
    return next(str(one.text) for one in loaded.notes if one.topic == topic)


@pytest.mark.parametrize(
    "family, part, count",
    [
        (stable_diffusion.SD1, "unet", 859_520_964),
        (stable_diffusion.SD1, "vae", 83_653_863),
        (stable_diffusion.SD1, "text_encoder", 123_060_480),
        (stable_diffusion.SD2, "unet", 865_910_724),
        (stable_diffusion.SD2, "text_encoder", 340_387_840),
        (stable_diffusion.SDXL, "unet", 2_567_463_684),
        (stable_diffusion.SDXL, "text_encoder_2", 694_659_840),
    ],
)
def test_known_models_have_the_published_sizes(family: Path, part: str, count: int) -> None:
    with torch.device("meta"):
        built = diffusers_folder.build(part, Component(diffusers=str(family), subfolder=part), torch.float32)
    assert sum(parameter.numel() for parameter in built.module.parameters()) == count


# -- diffusers ----------------------------------------------------------------------------------------------


def test_a_command_of_diffusers() -> None:
    loaded = command(
        f"accelerate launch --mixed_precision fp16 train_text_to_image_lora.py {SD15} --dataset_name a/b --rank 8 "
        "--train_batch_size 4 --gradient_accumulation_steps 2 --gradient_checkpointing --use_8bit_adam"
    )
    job, unet = loaded.job, loaded.job.components["unet"]
    assert loaded.recognised_as == "command: diffusers training script (train_text_to_image_lora)"
    assert job.sizes == {"batch": 4, "height": 512, "width": 512}
    assert (job.accumulation, job.gradient_clipping, job.optimizer[0].name) == (2, 1.0, "adamw8bit")
    assert (unet.mode, unet.dtype, job.precision.preset) == ("lora", "fp16", "fp16"), "accelerate's precision"
    assert unet.lora is not None
    assert (unet.lora.rank, unet.lora.dtype, unet.lora.targets) == (8, "fp32", ["to_k", "to_q", "to_v", "to_out.0"])
    assert job.checkpointing.scope == "all" and unet.checkpointing is None
    vae, text = job.components["vae"], job.components["text_encoder"]
    assert (vae.mode, vae.dtype, vae.autocast) == ("frozen", "fp16", False)
    assert (text.mode, text.dtype, text.runs_without_grad) == ("frozen", "fp16", True)
    assert "not on this machine" in note(loaded, "model")


def test_what_each_script_keeps_on_the_card() -> None:
    xl = "--pretrained_model_name_or_path stabilityai/stable-diffusion-xl-base-1.0 --mixed_precision fp16"
    whole = command(f"python train_text_to_image_sdxl.py {xl} --train_batch_size 1").job
    assert list(whole.components) == ["unet"], "latents and texts were encoded before"
    assert (whole.sizes["height"], whole.components["unet"].dtype) == (1024, "fp32")
    adapters = command(f"python train_text_to_image_lora_sdxl.py {xl} --train_batch_size 1").job
    assert list(adapters.components) == ["vae", "text_encoder", "text_encoder_2", "text", "unet"]
    assert (adapters.components["vae"].dtype, adapters.components["text_encoder"].dtype) == ("fp32", "fp16")
    booth = command(f"python train_dreambooth.py {SD15} --with_prior_preservation --train_text_encoder").job
    assert booth.inputs["images"].shape[0] == "2 * batch"
    assert (booth.set_to_none, booth.components["text_encoder"].mode) == (False, "trained")
    average = command(f"python train_text_to_image.py {SD15} --use_ema").job.ema
    assert average is not None and average.update == "loop"


def test_scripts_and_options_that_are_not_modelled() -> None:
    with pytest.raises(CannotPredict, match=r"train_custom_diffusion.py of diffusers is not read.*vramcast run"):
        command(f"accelerate launch train_custom_diffusion.py {SD15} --resolution 512")
    with pytest.raises(CannotPredict, match="dream_training"):
        command(f"python train_text_to_image.py {SD15} --dream_training")
    with pytest.raises(UsageError, match="hf download someone/else --include"):
        command("python train_text_to_image.py --pretrained_model_name_or_path someone/else --resolution 512")
    with pytest.raises(UsageError, match="did you mean 'resolution'"):
        command(f"python train_text_to_image.py {SD15} --resolutoin 512")


def test_a_controlnet_learns_through_the_unet() -> None:
    flags = "--resolution 512 --train_batch_size 2 --mixed_precision bf16 --gradient_checkpointing --set_grads_to_none"
    job = command(f"accelerate launch train_controlnet.py {SD15} {flags}").job
    control, unet = job.components["controlnet"], job.components["unet"]
    assert (control.mode, control.dtype, control.class_name) == ("trained", "fp32", "ControlNetModel")
    assert (unet.mode, unet.no_grad, unet.autocast, unet.dtype) == ("frozen", False, False, "bf16")
    assert unet.checkpointing is not None and unet.checkpointing.scope == "none", "only the ControlNet is checkpointed"
    assert isinstance(unet.inputs, dict)
    assert sum(name.startswith("down_block_additional_residuals") for name in unet.inputs) == 12
    assert unet.inputs["mid_block_additional_residual"] == "controlnet.1.float().bfloat16()"
    xl = "--pretrained_model_name_or_path stabilityai/stable-diffusion-xl-base-1.0 --mixed_precision fp16"
    large = command(f"python train_controlnet_sdxl.py {xl}").job
    assert [name for name, one in large.components.items() if not one.call] == ["text_encoder", "text_encoder_2"]
    assert (large.components["vae"].dtype, large.set_to_none) == ("fp32", False)


def test_other_scripts_of_diffusers() -> None:
    edits = command(f"python train_instruct_pix2pix.py {SD15} --mixed_precision fp16").job
    assert edits.sizes == {"batch": 16, "height": 256, "width": 256}
    assert (edits.components["unet"].config, edits.components["original"].same_as) == ({"in_channels": 8}, "vae")
    words = command(f"python textual_inversion.py {SD15} --placeholder_token a --initializer_token b").job
    assert words.components["text_encoder"].train_only == ["*token_embedding*"]
    assert (words.components["unet"].mode, words.gradient_clipping) == ("frozen", None)
    plain = command("accelerate launch train_unconditional.py --dataset_name a/b --use_ema").job
    assert list(plain.components) == ["unet"] and plain.ema is not None


FLUX = "--pretrained_model_name_or_path black-forest-labs/FLUX.1-dev --mixed_precision bf16"


def test_flux_and_stable_diffusion_3() -> None:
    adapters = command(f"accelerate launch train_dreambooth_lora_flux.py {FLUX} --gradient_checkpointing --rank 16").job
    assert list(adapters.components) == ["vae", "text_encoder", "text_encoder_2", "packed", "transformer", "unpacked"]
    assert adapters.inputs["tokens_2"].shape == ["batch", 512]
    assert adapters.components["transformer"].lora is not None
    assert (adapters.components["transformer"].lora.rank, adapters.components["transformer"].dtype) == (16, "bf16")
    ready = command(f"python train_dreambooth_lora_flux.py {FLUX} --cache_latents --with_prior_preservation").job
    assert "vae" not in ready.components and ready.inputs["latents"].shape[:2] == ["2 * batch", 16]
    whole = command(f"accelerate launch train_dreambooth_flux.py {FLUX}").job
    assert (whole.components["transformer"].mode, whole.components["transformer"].dtype) == ("trained", "fp32")
    assert "text_encoder_2" not in whole.components, "one prompt for all images is encoded before"
    sd3 = "--pretrained_model_name_or_path stabilityai/stable-diffusion-3-medium-diffusers --mixed_precision fp16"
    second = command(f"python train_dreambooth_lora_sd3.py {sd3} --lora_blocks 1,2 --lora_layers attn.to_k").job
    assert second.inputs["text"].shape == ["batch", 154, 4096]
    assert second.components["vae"].dtype == "fp32"
    lora = second.components["transformer"].lora
    assert lora is not None
    assert lora.targets == ["transformer_blocks.1.attn.to_k", "transformer_blocks.2.attn.to_k"]
    for flags in ("--train_text_encoder", "--optimizer prodigy"):
        with pytest.raises(CannotPredict, match=flags.partition(" ")[0]):
            command(f"python train_dreambooth_lora_flux.py {FLUX} {flags}")
    with pytest.raises(CannotPredict, match="has not the transformer, vae and text_encoder"):
        command(f"python train_dreambooth_lora_flux.py {SD15}")


@pytest.mark.parametrize(
    "family, part, count",
    [
        (stable_diffusion.FLUX, "transformer", 11_901_408_320),
        (stable_diffusion.FLUX, "text_encoder_2", 4_762_310_656),
        (stable_diffusion.FLUX, "vae", 83_819_683),
    ],
)
def test_the_parts_of_flux_have_the_published_sizes(family: Path, part: str, count: int) -> None:
    with torch.device("meta"):
        built = diffusers_folder.build(part, Component(diffusers=str(family), subfolder=part), torch.float32)
    assert sum(parameter.numel() for parameter in built.module.parameters()) == count


def small_flux(folder: Path) -> Path:
    parts: dict[str, dict[str, Any]] = {
        "transformer": {
            "_class_name": "FluxTransformer2DModel", "in_channels": 64, "num_layers": 3, "num_single_layers": 6,
            "attention_head_dim": 128, "num_attention_heads": 6, "joint_attention_dim": 512,
            "pooled_projection_dim": 256, "guidance_embeds": True,
        },
        "vae": {
            "_class_name": "AutoencoderKL", "block_out_channels": [96] * 4, "latent_channels": 16,
            "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4,
            "norm_num_groups": 16, "use_quant_conv": False, "use_post_quant_conv": False,
        },
        "text_encoder": {
            "architectures": ["CLIPTextModel"], "model_type": "clip_text_model", "hidden_size": 256,
            "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 190,
            "max_position_embeddings": 77,
        },
        "text_encoder_2": {
            "architectures": ["T5EncoderModel"], "model_type": "t5", "vocab_size": 64, "d_model": 512, "d_ff": 1024,
            "d_kv": 64, "num_heads": 8, "num_layers": 4, "feed_forward_proj": "gated-gelu",
        },
    }  # fmt: skip
    index: dict[str, Any] = {name: ["diffusers", str(part.get("_class_name"))] for name, part in parts.items()}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline", **index}))
    for name, part in parts.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(part))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "text, allocated, reserved",
    [
        ("train_dreambooth_lora_flux.py", 776_786_944, 866_123_776),
        ("train_dreambooth_flux.py --gradient_checkpointing", 2_536_279_552, 2_810_183_680),
    ],
)
def test_flux_takes_what_its_script_takes(text: str, allocated: int, reserved: int, tmp_path: Path) -> None:
    """What `vramcast run` found for diffusers' own scripts with this small pipeline. The script fills the cache in
    another order, so that it reserves less."""
    flags = f"--pretrained_model_name_or_path {small_flux(tmp_path)} --resolution 256 --train_batch_size 2"
    prediction = vramcast.predict(command(f"python {text} {flags} --mixed_precision bf16"), gpu="h200")
    assert prediction.peak_allocated_bytes == pytest.approx(allocated, rel=0.005)
    assert reserved <= prediction.peak_reserved_bytes <= 1.05 * reserved


def test_the_unet_of_train_unconditional_has_its_published_size() -> None:
    with torch.device("meta"):
        built = diffusers_folder.build("unet", Component(diffusers=str(stable_diffusion.UNCONDITIONAL)), torch.float32)
    assert sum(parameter.numel() for parameter in built.module.parameters()) == 113_673_219


def small_pipeline(folder: Path) -> Path:
    """The configs of lab/zoo's stable_diffusion recipe."""
    parts: dict[str, dict[str, Any]] = {
        "unet": {
            "_class_name": "UNet2DConditionModel", "block_out_channels": [192, 384, 384], "layers_per_block": 1,
            "sample_size": 32, "cross_attention_dim": 256, "attention_head_dim": 8,
            "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
            "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
        },
        "vae": {
            "_class_name": "AutoencoderKL", "block_out_channels": [96, 96, 96], "latent_channels": 4,
            "down_block_types": ["DownEncoderBlock2D"] * 3, "up_block_types": ["UpDecoderBlock2D"] * 3,
            "norm_num_groups": 16,
        },
        "text_encoder": {
            "architectures": ["CLIPTextModel"], "model_type": "clip_text_model", "hidden_size": 256,
            "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 190,
            "max_position_embeddings": 77,
        },
    }  # fmt: skip
    index: dict[str, Any] = {name: ["diffusers", str(part.get("_class_name"))] for name, part in parts.items()}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline", **index}))
    for name, part in parts.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(part))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, text",
    [
        ("text-to-image", "train_text_to_image.py --train_batch_size 4 --mixed_precision fp16 --use_ema"),
        ("text-to-image-lora", "train_text_to_image_lora.py --train_batch_size 4 --mixed_precision bf16 --rank 8"),
        ("unconditional", "train_unconditional.py --train_batch_size 16 --mixed_precision fp16 --use_ema"),
        ("dreambooth", "train_dreambooth.py --train_batch_size 2 --train_text_encoder --gradient_checkpointing"),
    ],
)
def test_scripts_that_were_measured(name: str, text: str, tmp_path: Path) -> None:
    """The scripts themselves ran on an H200 (lab/zoo)."""
    model = f"--pretrained_model_name_or_path {small_pipeline(tmp_path)} --resolution 256"
    if name == "unconditional":
        model = "--train_data_dir images --resolution 64"
    prediction = vramcast.predict(command(f"python {text} {model}"), gpu="h200")
    measured = json.loads(MEASURED.read_text())[f"diffusers-{name}"]
    assert prediction.peak_allocated_bytes == pytest.approx(measured["peak_allocated_bytes"], rel=0.002)
    assert prediction.peak_reserved_bytes == pytest.approx(measured["peak_reserved_bytes"], rel=0.004)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text, allocated, reserved",
    [
        ("train_controlnet.py --mixed_precision bf16 --gradient_checkpointing", 732_306_944, 941_621_248),
        ("train_instruct_pix2pix.py --mixed_precision fp16", 1_161_345_536, 1_296_039_936),
        ("textual_inversion.py --mixed_precision fp16", 334_252_544, 499_122_176),
    ],
)
def test_flags_predict_what_the_script_itself_takes(text: str, allocated: int, reserved: int, tmp_path: Path) -> None:
    """What `vramcast run` found for diffusers' own scripts with this small pipeline, whose autoencoder has a level
    more; a tokenizer of 190 words."""
    folder = small_pipeline(tmp_path)
    vae = json.loads((folder / "vae" / "config.json").read_text())
    vae |= {"block_out_channels": [96] * 4, "down_block_types": ["DownEncoderBlock2D"] * 4}
    (folder / "vae" / "config.json").write_text(json.dumps({**vae, "up_block_types": ["UpDecoderBlock2D"] * 4}))
    flags = f"--pretrained_model_name_or_path {folder} --resolution 256 --train_batch_size 2"
    prediction = vramcast.predict(command(f"python {text} {flags}"), gpu="h200")
    assert prediction.peak_allocated_bytes == pytest.approx(allocated, rel=0.005)
    assert prediction.peak_reserved_bytes == pytest.approx(reserved, rel=0.005)


# -- kohya --------------------------------------------------------------------------------------------------

LORA = "--pretrained_model_name_or_path model.safetensors --network_module networks.lora"


def test_a_command_of_kohya(tmp_path: Path) -> None:
    sets = tmp_path / "sets.toml"
    sets.write_text(
        "[general]\nbatch_size = 2\nenable_bucket = true\n[[datasets]]\nresolution = 512\n"
        "[[datasets.subsets]]\nimage_dir = 'a'\n[[datasets]]\nresolution = [768, 640]\n[[datasets.subsets]]\n"
    )
    loaded = command(
        f"accelerate launch --mixed_precision bf16 train_network.py {LORA} --dataset_config {sets} --network_dim 16 "
        "--optimizer_type AdamW8bit --mixed_precision fp16 --sdpa --gradient_checkpointing --clip_skip 2"
    )
    job, unet, text = loaded.job, loaded.job.components["unet"], loaded.job.components["text_encoder"]
    assert loaded.recognised_as == "command: kohya sd-scripts config (train_network)"
    assert job.sizes == {"batch": 2, "height": 640, "width": 768}, "the set with most pixels"
    assert (job.precision.preset, job.optimizer[0].name, unet.dtype) == ("fp16", "adamw8bit", "fp16")
    assert "whatever accelerate" in note(loaded, "precision")
    assert unet.lora is not None and text.lora is not None
    assert (unet.lora.rank, unet.lora.dtype, unet.lora.cast_inputs) == (16, "fp32", False)
    assert (text.mode, text.no_grad) == ("lora", False), "text encoders learn unless network_train_unet_only"
    assert isinstance(unet.inputs, dict)
    assert unet.inputs["encoder_hidden_states"] == "text_encoder.hidden_states.11", "clip_skip 2"
    assert job.components["vae"].prepare == ["enable_slicing"], "vae_batch_size is 1"


def test_adapters_are_where_kohya_puts_them() -> None:
    """Its log counts 192 modules of Stable Diffusion 1's U-Net, 72 of its text encoder, and 722 of XL's U-Net."""
    for script, wanted in (("train_network", {"unet": 192, "text_encoder": 72}), ("sdxl_train_network", {"unet": 722})):
        job = command(f"python {script}.py {LORA} --resolution 512 --sdpa").job
        for name, count in wanted.items():
            with torch.device("meta"):
                built = diffusers_folder.build(name, job.components[name], torch.float32)
                module = add_adapters(name, built.module, job.components[name].lora, built.family)
            assert sum(place.endswith("lora_A") for place, _ in module.named_modules()) == count


def test_whole_models_and_long_texts() -> None:
    whole = "--pretrained_model_name_or_path sd_xl_base_1.0.safetensors --resolution 1024 --sdpa"
    xl = command(
        f"python sdxl_train.py {whole} --train_text_encoder --learning_rate_te2 0 --full_bf16 --mixed_precision bf16"
    ).job
    assert (xl.components["unet"].mode, xl.components["unet"].dtype) == ("trained", "bf16")
    assert (xl.components["text_encoder"].mode, xl.components["text_encoder_2"].mode) == ("trained", "frozen")
    long = command(f"python train_network.py {LORA} --resolution 512 --max_token_length 225 --sdpa").job
    assert long.components["text"].arguments == {"chunks": 3}
    eager = command(f"python train_network.py {LORA} --resolution 512").job
    assert eager.components["unet"].prepare == ["set_default_attn_processor"]
    second = command(
        "python train_db.py --pretrained_model_name_or_path m.ckpt --v2 --resolution 512,768 --xformers"
    ).job
    assert second.components["text_encoder"].mode == "trained"
    assert str(second.components["unet"].diffusers).endswith("stable-diffusion-2")
    assert (second.sizes["width"], second.sizes["height"]) == (512, 768)


def test_a_config_file_of_kohya(tmp_path: Path) -> None:
    file = tmp_path / "lora.toml"
    file.write_text(
        '[model]\npretrained_model_name_or_path = "sd_xl_base_1.0.safetensors"\n[network]\nnetwork_module = '
        '"networks.lora"\nnetwork_dim = 8\nnetwork_train_unet_only = true\n[training]\nresolution = "1024,1024"\n'
        'cache_text_encoder_outputs = true\ncache_latents = true\nmixed_precision = "bf16"\nsdpa = true\n'
    )
    loaded = load_job(str(file))
    assert loaded.recognised_as == "kohya sd-scripts config (sdxl_train_network)"
    assert list(loaded.job.components) == ["unet"]
    named = command(f"accelerate launch sdxl_train_network.py --config_file {file} --network_dim 4").job
    assert named.components["unet"].lora is not None and named.components["unet"].lora.rank == 4, "flags win"


def test_what_of_kohya_is_not_modelled(tmp_path: Path) -> None:
    with pytest.raises(CannotPredict, match=r"flux_train_network.py of kohya's sd-scripts is not modelled"):
        command(f"accelerate launch flux_train_network.py {LORA} --resolution 512")
    for flags in ("--fp8_base", "--optimizer_type Prodigy", "--fused_backward_pass"):
        with pytest.raises(CannotPredict, match=flags.rpartition(" ")[2].removeprefix("--")):
            command(f"python train_network.py {LORA} --resolution 512 {flags}")
    with pytest.raises(UsageError, match="network_train_unet_only"):
        command(f"python sdxl_train_network.py {LORA} --resolution 512 --cache_text_encoder_outputs")
    sets = tmp_path / "sets.toml"
    sets.write_text("[[datasets]]\nresolution = 512\n[[datasets.subsets]]\nimage_dir = 'a'\n")
    with pytest.raises(UsageError, match="says which images are trained on"):
        load_job(str(sets))


def _rewritten(command: str, changes: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    loaded = load_job(None, request=Request(arguments=tuple(shlex.split(command))))
    result = rewrite(loaded, changes)
    return shlex.join(result.arguments), dict(result.beside)


def test_changes_of_a_diffusers_command_are_its_own_flags() -> None:
    command = (
        "accelerate launch train_text_to_image.py --pretrained_model_name_or_path=CompVis/stable-diffusion-v1-4 "
        "--resolution=512 --train_batch_size=4 --use_8bit_adam --mixed_precision=fp16"
    )
    changes = {"sizes.batch": 2, "accumulation": 2, "checkpointing": "all", "optimizer": "adamw"}
    said, beside = _rewritten(command, changes)
    assert beside == {} and "--use_8bit_adam" not in said
    assert "--train_batch_size=2" in said
    assert said.endswith("--gradient_accumulation_steps 2 --gradient_checkpointing"), "switches take no value"


def test_changes_of_a_kohya_command_are_its_own_flags() -> None:
    command = (
        "accelerate launch sdxl_train_network.py --pretrained_model_name_or_path=a.safetensors --resolution=1024,768 "
        "--train_batch_size=4 --mixed_precision=bf16 --network_module=networks.lora --sdpa --network_train_unet_only"
    )
    changes = {"sizes.batch": 1, "checkpointing": "all", "optimizer": "adamw8bit"}
    said, beside = _rewritten(command, changes)
    assert beside == {} and "--train_batch_size=1" in said
    assert said.endswith("--gradient_checkpointing --optimizer_type AdamW8bit")
