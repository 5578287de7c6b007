"""The jobs that the project's source documents describe.

VRT and VGGT are other people's code that is not kept here: VRAMCAST_KAIR and VRAMCAST_VGGT name folders that
hold cszn/KAIR's `models/` and facebookresearch/vggt's `vggt/`.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.workloads.common import Batch, Step, train


def _import_from(variable: str, module: str) -> Any:
    folder = os.environ.get(variable)
    if not folder:
        raise RuntimeError(f"set {variable} to the folder that holds {module.split('.')[0]}/")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(module)


def _provide_distutils() -> None:
    """VRT imports distutils, which Python 3.12 dropped, for a version comparison that it makes on old torch."""
    try:
        import distutils.version  # noqa: F401
    except ModuleNotFoundError:
        package, version = types.ModuleType("distutils"), types.ModuleType("distutils.version")
        version.LooseVersion = lambda text: tuple(int(x) for x in text.split("+")[0].split(".") if x.isdigit())  # type: ignore[attr-defined]
        sys.modules.setdefault("distutils", package)
        sys.modules["distutils.version"] = version


def vrt(
    *, crop: int = 224, batch: int = 1, frames: int = 6, freeze_first: bool = True, precision: str = "fp32"
) -> Step:  # fmt: skip
    """VRT with the options of KAIR's 006_train_vrt_videodeblurring_gopro.json at another crop.

    `freeze_first` is the file's fix_iter: SpyNet and the deformable convolutions are frozen at first.
    """
    _provide_distutils()
    network = _import_from("VRAMCAST_KAIR", "models.network_vrt")
    model = network.VRT(
        upscale=1, img_size=[frames, crop, crop], window_size=[6, 8, 8], depths=[8] * 7 + [4] * 4,
        indep_reconsts=[9, 10], embed_dims=[96] * 7 + [120] * 4, num_heads=[6] * 11, spynet_path=None, pa_frames=2,
        deformable_groups=16, nonblind_denoising=False, use_checkpoint_attn=True, use_checkpoint_ffn=True,
        no_checkpoint_attn_blocks=[2, 3, 4], no_checkpoint_ffn_blocks=[1, 2, 3, 4, 5, 9],
    )  # fmt: skip
    model = model.to("cuda").train()
    special = [p for name, p in model.named_parameters() if "spynet" in name or "deform" in name]
    normal = [p for name, p in model.named_parameters() if not ("spynet" in name or "deform" in name)]
    optimizer = torch.optim.Adam(
        [{"params": normal, "lr": 4e-4}, {"params": special, "lr": 5e-5}], lr=4e-4, betas=(0.9, 0.99), weight_decay=0
    )
    if freeze_first:
        for p in special:
            p.requires_grad_(False)
    data = {"L": torch.rand(batch, frames, 3, crop, crop), "H": torch.rand(batch, frames, 3, crop, crop)}

    def forward(model: nn.Module, batch: Batch) -> Any:
        restored = model(batch["L"])
        difference = restored - batch["H"]
        return torch.mean(torch.sqrt(difference * difference + 1e-9)), restored

    return train(model, data, forward, optimizer, precision=precision, style="loop")


def _cogvideox_config(layers: int, heads: int) -> dict[str, Any]:
    return {
        "num_attention_heads": heads, "attention_head_dim": 64, "in_channels": 16, "out_channels": 16,
        "num_layers": layers, "time_embed_dim": 512, "text_embed_dim": 4096, "sample_width": 32, "sample_height": 32,
        "sample_frames": 17, "patch_size": 2, "temporal_compression_ratio": 4, "max_text_seq_length": 226,
        "use_rotary_positional_embeddings": True,
    }  # fmt: skip


def cogvideox_unlearning(
    *, batch: int = 4, frames: int = 5, latent: int = 32, layers: int = 42, heads: int = 48, checkpointing: bool = True,
    frozen_copy: bool = True,
) -> Step:  # fmt: skip
    """CogVideoX-5b's transformer in bf16, trained to keep to (or leave) what its frozen copy answers."""
    from diffusers import CogVideoXTransformer3DModel
    from diffusers.models.embeddings import get_3d_rotary_pos_embed

    def build() -> Any:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            model = CogVideoXTransformer3DModel(**_cogvideox_config(layers, heads))
        torch.set_default_dtype(torch.float32)
        return model.to(torch.bfloat16)

    original = build().requires_grad_(False).eval() if frozen_copy else None
    model = build().train()
    if checkpointing:
        model.enable_gradient_checkpointing()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    side = latent // 2
    rotary = get_3d_rotary_pos_embed(64, ((0, 0), (side, side)), (side, side), frames, device="cuda")
    data = {
        "latents": torch.randn(batch, frames, 16, latent, latent).bfloat16(),
        "text": torch.randn(batch, 226, 4096).bfloat16(),
    }

    def forward(model: nn.Module, batch: Batch) -> Any:
        latents, text = batch["latents"], batch["text"]
        steps = torch.randint(0, 1000, (latents.shape[0],), device="cuda")
        arguments = {
            "hidden_states": latents, "encoder_hidden_states": text, "timestep": steps, "image_rotary_emb": rotary,
            "return_dict": False,
        }  # fmt: skip
        if original is None:
            target = torch.randn_like(latents)
        else:
            with torch.no_grad():
                target = original(**arguments)[0]
        predicted = model(**arguments)[0]
        return F.mse_loss(predicted.float(), target.float())

    return train(model, data, forward, optimizer)


class FusionHead(nn.Module):
    """Visual and language tokens joined by a small transformer that answers with actions."""

    def __init__(self, visual: int, language: int, width: int, layers: int, actions: int) -> None:
        super().__init__()
        self.visual = nn.Linear(visual, width)
        self.language = nn.Linear(language, width)
        layer = nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True, norm_first=True)
        self.fusion = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.action = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, actions))

    def forward(self, visual: torch.Tensor, language: torch.Tensor) -> torch.Tensor:
        tokens = torch.cat([self.visual(visual), self.language(language)], dim=1)
        return self.action(self.fusion(tokens).mean(dim=1))


def robot_policy(
    *, batch: int = 8, views: int = 2, size: int = 518, words: int = 64, width: int = 1024, layers: int = 4,
    vggt_dtype: str = "fp32", llama_layers: int = 32,
) -> Step:  # fmt: skip
    """VGGT-1B and LLaMA-2-7B frozen, a fusion transformer and an action head trained under bf16 autocast."""
    vggt = _import_from("VRAMCAST_VGGT", "vggt.models.vggt")
    from transformers import LlamaConfig, LlamaModel

    with torch.device("cuda"):
        vision = vggt.VGGT()
    vision = vision.to("cuda")  # its constants are made on the CPU whatever the default device
    if vggt_dtype == "bf16":
        vision = vision.to(torch.bfloat16)
    vision = vision.eval().requires_grad_(False)
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        language = LlamaModel(LlamaConfig(num_hidden_layers=llama_layers, use_cache=False))
    torch.set_default_dtype(torch.float32)
    language = language.half().eval().requires_grad_(False)
    head = FusionHead(2048, 4096, width, layers, 7).cuda().train()
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-4)
    data = {
        "images": torch.rand(batch, views, 3, size, size),
        "words": torch.randint(0, 32000, (batch, words)),
        "actions": torch.randn(batch, 7),
    }

    def forward(model: nn.Module, batch: Batch) -> Any:
        with torch.no_grad():
            features = vision.aggregator(batch["images"])[0][-1]
            hidden = language(batch["words"]).last_hidden_state
        visual = features.flatten(1, 2).float()
        return F.mse_loss(model(visual, hidden.float()), batch["actions"])

    return train(head, data, forward, optimizer, precision="bf16")
