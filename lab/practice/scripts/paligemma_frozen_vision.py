"""PaliGemma of transformers: picture tokens in the text, the vision tower frozen, checkpointing, loss on the suffix."""

import torch
from transformers import GemmaConfig, PaliGemmaConfig, PaliGemmaForConditionalGeneration, SiglipVisionConfig

torch.manual_seed(0)
vision = SiglipVisionConfig(
    hidden_size=512, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=8, image_size=224, patch_size=14,
    projection_dim=1024, vision_use_head=False,
)  # fmt: skip
text = GemmaConfig(
    hidden_size=1024, intermediate_size=4096, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=1,
    head_dim=128, vocab_size=32000,
)  # fmt: skip
config = PaliGemmaConfig(vision_config=vision, text_config=text, image_token_index=31999, projection_dim=1024)
model = PaliGemmaForConditionalGeneration(config).to("cuda", torch.bfloat16)
for name, parameter in model.named_parameters():
    if "vision_tower" in name:
        parameter.requires_grad = False
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-5)
for step in range(4):
    pictures = torch.rand(4, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    words = torch.randint(0, 31000, (4, 96 + 16 * step))
    ids = torch.cat([torch.full((4, 256), 31999), words], 1).cuda()
    labels = ids.clone()
    labels[:, : 256 + 32] = -100
    kinds = torch.cat([torch.zeros(4, 288, dtype=torch.long), torch.ones(4, ids.shape[1] - 288, dtype=torch.long)], 1)
    out = model(
        input_ids=ids, pixel_values=pictures, attention_mask=torch.ones_like(ids), token_type_ids=kinds.cuda(),
        labels=labels,
    )  # fmt: skip
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print(out.loss.item())
