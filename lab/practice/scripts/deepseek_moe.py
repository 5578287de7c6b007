"""A small DeepSeek-V3: latent attention, shared and routed experts, a bias that balances them after each step."""

import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

torch.manual_seed(0)
config = DeepseekV3Config(
    hidden_size=512, intermediate_size=1536, moe_intermediate_size=384, num_hidden_layers=6, num_attention_heads=8,
    num_key_value_heads=8, n_routed_experts=16, num_experts_per_tok=4, n_group=4, topk_group=2, first_k_dense_replace=1,
    q_lora_rank=256, kv_lora_rank=128, qk_rope_head_dim=32, v_head_dim=64, qk_nope_head_dim=64, vocab_size=16000,
)  # fmt: skip
model = DeepseekV3ForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for step in range(4):
    ids = torch.randint(0, 16000, (4, 512 + 128 * (step % 2)), device="cuda")
    loss = model(ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
