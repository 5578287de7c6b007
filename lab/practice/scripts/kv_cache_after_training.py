"""Train a few steps, then generate with a static and a dynamic KV cache."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=1536,
    intermediate_size=4096,
    num_hidden_layers=8,
    num_attention_heads=12,
    num_key_value_heads=4,
    vocab_size=32000,
    pad_token_id=0,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model.train()
for step in range(4):
    ids = torch.randint(0, config.vocab_size, (4, 512), device="cuda")
    loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.inference_mode():
    prompt = torch.randint(3, config.vocab_size, (32, 512), device="cuda")
    dynamic = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, min_new_tokens=24, do_sample=False
    )
    cache = StaticCache(config=config, max_cache_len=640)
    position = torch.arange(512, device="cuda")
    output = model(prompt, past_key_values=cache, cache_position=position, use_cache=True)
    token = output.logits[:, -1:].argmax(-1)
    for t in range(512, 532):
        output = model(token, past_key_values=cache, cache_position=torch.tensor([t], device="cuda"), use_cache=True)
        token = output.logits[:, -1:].argmax(-1)
print(loss.item())
