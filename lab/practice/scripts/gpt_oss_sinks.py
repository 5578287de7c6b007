"""gpt-oss: attention with sinks, sliding and full layers in turns, experts; fp32 weights under autocast."""

import torch
from transformers import GptOssConfig, GptOssForCausalLM

torch.manual_seed(0)
config = GptOssConfig(
    hidden_size=512, intermediate_size=512, num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=4,
    head_dim=32, num_local_experts=8, num_experts_per_tok=2, vocab_size=20000, sliding_window=128,
    layer_types=["sliding_attention", "full_attention"] * 3,
)  # fmt: skip
model = GptOssForCausalLM(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    ids = torch.randint(0, 20000, (2, 640), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
