"""GRPO with nucleus sampling and LoRA: the reference is the adapter switched off; rewards whitened by group."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

torch.manual_seed(0)
config = Qwen2Config(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=6,
    num_attention_heads=16,
    num_key_value_heads=4,
    vocab_size=64000,
    pad_token_id=0,
    eos_token_id=2,
)
model = Qwen2ForCausalLM(config).to("cuda", torch.bfloat16)
model = get_peft_model(model, LoraConfig(r=32, target_modules="all-linear", task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)


def log_probabilities(ids, start):
    logits = model(input_ids=ids, use_cache=False).logits[:, start - 1 : -1].float()
    return torch.gather(logits.log_softmax(-1), 2, ids[:, start:, None]).squeeze(2)


for step in range(4):
    prompt = torch.randint(3, 64000, (2, 64), device="cuda").repeat_interleave(8, 0)
    with torch.no_grad():
        ids = model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            top_p=0.95,
            top_k=0,
            temperature=0.9,
            min_new_tokens=24,
            max_new_tokens=24,
        )
        rewards = torch.randn(2, 8, device="cuda")
        advantage = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        with model.disable_adapter():
            reference = log_probabilities(ids, 64)
        old = log_probabilities(ids, 64)
    new = log_probabilities(ids, 64)
    ratio = (new - old).exp()
    loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    loss = loss + 0.04 * ((reference - new).exp() - (reference - new) - 1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
