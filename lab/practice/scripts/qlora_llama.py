"""QLoRA: a Llama in 4 bits, LoRA on all linear layers, paged 8-bit AdamW, checkpointing."""

import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import LlamaConfig, LlamaForCausalLM


def quantized(module):
    for name, child in module.named_children():
        if isinstance(child, torch.nn.Linear) and name != "lm_head":
            layer = bnb.nn.Linear4bit(
                child.in_features,
                child.out_features,
                bias=child.bias is not None,
                compute_dtype=torch.bfloat16,
                compress_statistics=True,
                quant_type="nf4",
            )
            layer.weight = bnb.nn.Params4bit(
                child.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4"
            )
            setattr(module, name, layer)
        else:
            quantized(child)
    return module


torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=2048,
    intermediate_size=5504,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=8,
    vocab_size=32000,
    use_cache=False,
)
model = LlamaForCausalLM(config).to(torch.bfloat16)
model = quantized(model).cuda()
model.is_loaded_in_4bit = True
model = prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": False})
model = get_peft_model(
    model,
    LoraConfig(
        r=16,
        lora_alpha=32,
        lora_dropout=0.05,
        task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    ),
)
optimizer = bnb.optim.PagedAdamW8bit([p for p in model.parameters() if p.requires_grad], lr=2e-4)
for step in range(5):
    ids = torch.randint(0, config.vocab_size, (4, 1024), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
