"""Qwen3-MoE under autocast with fp32 weights, padded batches."""

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

torch.manual_seed(0)
config = Qwen3MoeConfig(
    hidden_size=768,
    intermediate_size=2048,
    moe_intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=12,
    num_key_value_heads=4,
    head_dim=64,
    num_experts=32,
    num_experts_per_tok=4,
    vocab_size=50000,
    use_cache=False,
    norm_topk_prob=True,
    output_router_logits=True,
)
model = Qwen3MoeForCausalLM(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for step in range(4):
    ids = torch.randint(0, config.vocab_size, (4, 640)).cuda()
    mask = torch.ones_like(ids)
    mask[0, 500:] = 0
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
