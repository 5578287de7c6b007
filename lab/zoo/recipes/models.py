"""Weights, configs and tokenizers with the shapes of real ones and random contents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.zoo.recipes.files import sentence


def torchvision_weights(folder: Path, *, models: dict[str, str]) -> None:
    """The file of pretrained weights of each torchvision model, under the name that torch.hub looks for."""
    import torch
    import torchvision

    for model, name in models.items():
        torch.manual_seed(0)
        torch.save(torchvision.models.get_model(model, weights=None).state_dict(), folder / name)


def own_weights(
    folder: Path, *, root: str, module: str, model: str, name: str, options: dict[str, Any] | None = None,
    key: str = "model",
) -> None:  # fmt: skip
    """A checkpoint with random weights of a model that the repository defines: a class, a function or (with a dot) a
    method that makes it, or, with no options, the model itself. `key` is where the checkpoint has them; the weights
    alone where it is empty."""
    import importlib
    import operator
    import sys

    import torch

    sys.path.insert(0, root)
    torch.manual_seed(0)
    made = operator.attrgetter(model)(importlib.import_module(module))
    state = (made if options is None else made(**options)).state_dict()
    torch.save({key: state} if key else state, folder / name)


def checkpoint(folder: Path, *, name: str, document: Any) -> None:
    """What torch.save makes of a document: with nothing in it, a checkpoint whose weights are left as they were."""
    import torch

    torch.save(document, folder / name)


def tokenizer(folder: Path, *, vocabulary: int = 8000, kind: str = "bpe", chat_template: bool = False) -> None:
    """A fast tokenizer, trained on made-up sentences, with the usual special tokens."""
    import random

    import tokenizers
    from transformers import PreTrainedTokenizerFast

    draw = random.Random(0)
    corpus = [sentence(draw, 30, 5000) for _ in range(500)]
    if kind == "bpe":
        raw = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
        trainer: Any = tokenizers.trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=["<unk>", "<pad>", "<s>", "</s>"]
        )
        special = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    else:
        raw = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=names)
        special = {f"{name.strip('[]').lower()}_token": name for name in names}
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    raw.train_from_iterator(corpus, trainer)
    if kind != "bpe":
        raw.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=512, **special)
    if chat_template:
        fast.chat_template = (
            "{% for message in messages %}{{ message['role'] + ' : ' + message['content'] + ' </s> ' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'assistant : ' }}{% endif %}"
        )
    fast.save_pretrained(folder)


def transformers_model(folder: Path, *, model: str, config: dict[str, Any], weights: bool = True) -> None:
    """A model of the transformers library by the name of its class, with random weights."""
    import torch
    import transformers

    model_class = getattr(transformers, model)
    configuration = model_class.config_class(**config)
    if not weights:
        configuration.save_pretrained(folder)
        return
    torch.manual_seed(0)
    model_class(configuration).save_pretrained(folder)


def diffusers_model(folder: Path, *, model: str, config: dict[str, Any]) -> None:
    """A model of the diffusers library by the name of its class, with random weights."""
    import diffusers
    import torch

    torch.manual_seed(0)
    getattr(diffusers, model)(**config).save_pretrained(folder)


def timm_weights(folder: Path, *, model: str, repository: str) -> None:
    """Weights of a timm model in the cache of the Hugging Face hub, `folder`, as if they had been downloaded."""
    import timm
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    revision = "0" * 40
    base = folder / f"models--{repository.replace('/', '--')}"
    snapshot = base / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text(revision, encoding="utf-8")
    save_file(timm.create_model(model, pretrained=False).state_dict(), snapshot / "model.safetensors")


def stable_diffusion(folder: Path, *, channels: list[int], layers: int = 1, hidden: int = 256) -> None:
    """A text-to-image pipeline with the parts of Stable Diffusion, smaller and with random weights."""
    import diffusers
    import torch
    import transformers

    torch.manual_seed(0)
    letters = [chr(number) for number in range(33, 127)]
    words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: number for number, word in enumerate(words)}
    words_folder = folder / "words"
    words_folder.mkdir()
    (words_folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (words_folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    text_config = transformers.CLIPTextConfig(
        vocab_size=len(words), hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=4,
        num_attention_heads=hidden // 64, max_position_embeddings=77, bos_token_id=len(words) - 2,
        eos_token_id=len(words) - 1,
    )  # fmt: skip
    levels = len(channels)
    pipeline = diffusers.StableDiffusionPipeline(
        vae=diffusers.AutoencoderKL(
            block_out_channels=[channels[0] // 2] * 3, down_block_types=["DownEncoderBlock2D"] * 3,
            up_block_types=["UpDecoderBlock2D"] * 3, latent_channels=4, norm_num_groups=16,
        ),
        text_encoder=transformers.CLIPTextModel(text_config),
        tokenizer=transformers.CLIPTokenizer.from_pretrained(words_folder, model_max_length=77),
        unet=diffusers.UNet2DConditionModel(
            block_out_channels=channels, layers_per_block=layers, sample_size=32, cross_attention_dim=hidden,
            down_block_types=["CrossAttnDownBlock2D"] * (levels - 1) + ["DownBlock2D"],
            up_block_types=["UpBlock2D"] + ["CrossAttnUpBlock2D"] * (levels - 1), attention_head_dim=8,
        ),
        scheduler=diffusers.DDPMScheduler(),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    pipeline.save_pretrained(folder)


RECIPES = (
    checkpoint, diffusers_model, own_weights, stable_diffusion, timm_weights, tokenizer, torchvision_weights,
    transformers_model,
)  # fmt: skip
