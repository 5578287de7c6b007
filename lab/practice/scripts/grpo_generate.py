"""GRPO: groups of answers sampled with generate(), rewards, a clipped objective with a KL term."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=8,
    vocab_size=32000,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
policy = LlamaForCausalLM(config).to(device="cuda", dtype=torch.bfloat16)
reference = LlamaForCausalLM(config).to(device="cuda", dtype=torch.bfloat16).eval()
reference.requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)
group, prompt_length, answer_length = 8, 128, 64


def token_log_probabilities(model, ids):
    logits = model(ids, use_cache=False).logits[:, prompt_length - 1 : -1]
    return torch.log_softmax(logits.float(), -1).gather(-1, ids[:, prompt_length:, None]).squeeze(-1)


for step in range(4):
    prompts = torch.randint(3, config.vocab_size, (4, prompt_length), device="cuda")
    prompts = prompts.repeat_interleave(group, 0)
    policy.eval()
    with torch.no_grad():
        ids = policy.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            min_new_tokens=answer_length,
            max_new_tokens=answer_length,
        )
    policy.train()
    answers = ids[:, prompt_length:]
    reward = (answers % 7 == 0).float().mean(-1)
    grouped = reward.view(-1, group)
    advantage = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    with torch.no_grad():
        old = token_log_probabilities(policy, ids)
        frozen = token_log_probabilities(reference, ids)
    for _ in range(2):
        new = token_log_probabilities(policy, ids)
        ratio = (new - old).exp()
        surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        divergence = (frozen - new).exp() - (frozen - new) - 1
        loss = -(surrogate - 0.04 * divergence).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
print(loss.item())
