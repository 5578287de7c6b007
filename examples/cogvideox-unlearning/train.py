"""Make CogVideoX forget a concept, with both transformers, T5-XXL and the VAE in bf16 on one GPU.

The copy being trained learns to answer the concept's prompt as the original answers a neutral one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from models import load_scheduler, load_text_encoder, load_transformer, load_vae, rotary_places
from torch import Tensor
from transformers import AutoTokenizer, T5EncoderModel

HERE = Path(__file__).parent
PROMPT_TOKENS = 226


def prompt_ids(folder: Path, prompt: str) -> Tensor:
    """The prompt's tokens, or random ones when the folder holds no tokenizer."""
    if (folder / "tokenizer").is_dir():
        tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
        return tokenizer(prompt, padding="max_length", max_length=PROMPT_TOKENS, return_tensors="pt").input_ids
    return torch.randint(0, 32128, (1, PROMPT_TOKENS))


@torch.no_grad()
def encode_prompt(text_encoder: T5EncoderModel, ids: Tensor, batch: int) -> Tensor:
    return text_encoder(ids.expand(batch, -1).cuda()).last_hidden_state


@torch.no_grad()
def encode_video(vae: torch.nn.Module, video: Tensor) -> Tensor:
    """Video (batch, 3, frames, height, width) → latents (batch, frames, channels, height, width)."""
    latents = vae.encode(video.cuda()).latent_dist.sample() * vae.config.scaling_factor
    return latents.permute(0, 2, 1, 3, 4).contiguous()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-path", type=Path, default=HERE / "CogVideoX-5b")
    parser.add_argument("--concept", default="nudity", help="what to forget")
    parser.add_argument("--videos", type=Path, help="a .pt file of videos (n, 3, frames, h, w); random when left out")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--num-frames", type=int, default=17)
    parser.add_argument("--size", type=int, default=256, help="height and width of the videos")
    parser.add_argument("--checkpointing", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--fused", action="store_true", help="AdamW's fused kernel: no copies of the weights in it")
    parser.add_argument("--encode-first", action="store_true", help="encode prompts and videos, then drop T5 and VAE")
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()

    ids = {"concept": prompt_ids(args.model_path, args.concept), "neutral": prompt_ids(args.model_path, "")}
    shape = (args.batch, 3, args.num_frames, args.size, args.size)
    videos = torch.load(args.videos).bfloat16() if args.videos else torch.rand(shape).bfloat16()
    text_encoder, vae = load_text_encoder(args.model_path), load_vae(args.model_path)
    texts = latents = None
    if args.encode_first:
        texts = {name: encode_prompt(text_encoder, prompt, 1) for name, prompt in ids.items()}
        latents = torch.cat([encode_video(vae, video[None]).cpu() for video in videos])
        del text_encoder, vae

    original = load_transformer(args.model_path)
    model = load_transformer(args.model_path).requires_grad_(True).train()
    model.load_state_dict(original.state_dict())
    if args.checkpointing:
        model.enable_gradient_checkpointing()
    scheduler = load_scheduler(args.model_path)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=args.fused or None)

    for step in range(args.steps):
        chosen = torch.randint(0, len(videos), (args.batch,))
        if texts is not None and latents is not None:
            concept, neutral = (texts[name].expand(args.batch, -1, -1) for name in ("concept", "neutral"))
            clean = latents[chosen].cuda()
        else:
            concept, neutral = (encode_prompt(text_encoder, ids[name], args.batch) for name in ("concept", "neutral"))
            clean = encode_video(vae, videos[chosen])
        times = torch.randint(0, 1000, (args.batch,), device="cuda")
        noisy = scheduler.add_noise(clean, torch.randn_like(clean), times)
        places = rotary_places(model, noisy)
        with torch.no_grad():
            wanted = original(noisy, neutral, times, image_rotary_emb=places, return_dict=False)[0]
        answered = model(noisy, concept, times, image_rotary_emb=places, return_dict=False)[0]
        loss = F.mse_loss(answered.float(), wanted.float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
