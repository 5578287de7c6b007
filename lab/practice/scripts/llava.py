"""Llava: a frozen CLIP tower, a projector and a Llama, trained on images with text."""

import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

torch.manual_seed(0)
vision = CLIPVisionConfig(
    hidden_size=768, intermediate_size=3072, num_hidden_layers=8, num_attention_heads=12, image_size=336, patch_size=14
)
text = LlamaConfig(
    hidden_size=1536,
    intermediate_size=4096,
    num_hidden_layers=8,
    num_attention_heads=12,
    num_key_value_heads=4,
    vocab_size=32064,
    use_cache=False,
)
config = LlavaConfig(vision_config=vision, text_config=text, image_token_id=32000, image_seq_length=576)
model = LlavaForConditionalGeneration(config).to("cuda", torch.bfloat16)
model.model.vision_tower.requires_grad_(False)
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-5)
for step in range(4):
    words = torch.randint(0, 32000, (4, 128))
    ids = torch.cat([words[:, :8], torch.full((4, 576), 32000), words[:, 8:]], 1).cuda()
    pixels = torch.randn(4, 3, 336, 336).to("cuda", torch.bfloat16)
    labels = ids.clone()
    labels[ids == 32000] = -100
    loss = model(input_ids=ids, pixel_values=pixels, attention_mask=torch.ones_like(ids), labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
