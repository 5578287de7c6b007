"""Whisper: fine-tuning with teacher forcing, then transcriptions with the cache for evaluation between epochs."""

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

torch.manual_seed(0)
config = WhisperConfig(
    d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
    encoder_ffn_dim=2048, decoder_ffn_dim=2048, vocab_size=20000, decoder_start_token_id=1, pad_token_id=0,
    bos_token_id=1, eos_token_id=2, begin_suppress_tokens=None, suppress_tokens=None,
)  # fmt: skip
model = WhisperForConditionalGeneration(config).cuda()
model.model.encoder.conv1.requires_grad_(False)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-5)
for epoch in range(2):
    model.train()
    for step in range(2):
        sound = torch.randn(4, 80, 3000, device="cuda")
        words = torch.randint(3, 20000, (4, 64 + 32 * step), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_features=sound, labels=words, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        encoded = model.get_encoder()(torch.randn(8, 80, 3000, device="cuda"))
        tokens, cache = torch.ones(8, 1, dtype=torch.long, device="cuda"), None
        text = tokens
        for _ in range(40):
            out = model(encoder_outputs=encoded, decoder_input_ids=tokens, past_key_values=cache, use_cache=True)
            tokens, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
            text = torch.cat([text, tokens], 1)
print(loss.item(), text.shape)
