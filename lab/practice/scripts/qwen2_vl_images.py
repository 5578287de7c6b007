"""Qwen2-VL on images of varying size: patches packed without padding, positions of three axes, a frozen tower."""

import torch
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

torch.manual_seed(0)
config = Qwen2VLConfig(
    text_config=dict(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=4,
        vocab_size=32000, rope_scaling={"type": "mrope", "mrope_section": [8, 12, 12]}, bos_token_id=1, eos_token_id=2,
    ),
    vision_config=dict(depth=6, embed_dim=640, hidden_size=1024, num_heads=10, mlp_ratio=4, patch_size=14),
    image_token_id=31000, video_token_id=31001, vision_start_token_id=31002, vision_end_token_id=31003,
)  # fmt: skip
model = Qwen2VLForConditionalGeneration(config).to("cuda", torch.bfloat16)
model.model.visual.requires_grad_(False)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
for step, grids in enumerate([[(16, 24), (32, 20)], [(28, 28)], [(40, 32), (12, 12)], [(16, 24), (32, 20)]]):
    grid = torch.tensor([[1, h, w] for h, w in grids])
    pixels = torch.randn(int(grid.prod(-1).sum()), 1176).to("cuda", torch.bfloat16)
    words = []
    for h, w in grids:
        words += [31002, *[31000] * (h * w // 4), 31003, *torch.randint(0, 30000, (90,)).tolist()]
    ids = torch.tensor([words]).cuda()
    labels = ids.masked_fill(ids >= 31000, -100)
    kinds = (ids == 31000).int()
    loss = model(
        input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels, image_grid_thw=grid.cuda(), labels=labels,
        mm_token_type_ids=kinds,
    ).loss  # fmt: skip
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
