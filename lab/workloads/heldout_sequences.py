"""Held-out workloads: recurrences written as loops, long convolutions, memories and graphs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from lab.workloads.common import FIRST_SCALE, Batch, Step, autocast_for, make_optimizer, train


def wavenet(
    *, batch: int = 6, length: int = 16000, width: int = 128, cycles: int = 3, depth: int = 10,
    precision: str = "fp32", optimizer: str = "adam", style: str = "function",
) -> Step:  # fmt: skip
    """Dilated causal 1-D convolutions with gates, skips and weight norm."""

    class Layer(nn.Module):
        def __init__(self, dilation: int) -> None:
            super().__init__()
            self.dilation = dilation
            self.gated = weight_norm(nn.Conv1d(width, 2 * width, 2, dilation=dilation))
            self.residual, self.skip = nn.Conv1d(width, width, 1), nn.Conv1d(width, 2 * width, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            value, gate = self.gated(F.pad(x, (self.dilation, 0))).chunk(2, dim=1)
            hidden = torch.tanh(value) * torch.sigmoid(gate)
            return x + self.residual(hidden), self.skip(hidden)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(256, width)
            self.layers = nn.ModuleList([Layer(2 ** (i % depth)) for i in range(cycles * depth)])
            self.output = nn.Sequential(
                nn.ReLU(), nn.Conv1d(2 * width, 2 * width, 1), nn.ReLU(), nn.Conv1d(2 * width, 256, 1)
            )

        def forward(self, samples: torch.Tensor) -> torch.Tensor:
            x = self.embed(samples).transpose(1, 2)
            total: Any = 0
            for layer in self.layers:
                x, skip = layer(x)
                total = total + skip
            return self.output(total)

    model = Network().cuda()
    data = {"samples": torch.randint(0, 256, (batch, length + 1))}

    def forward(model: nn.Module, batch: Batch) -> Any:
        return F.cross_entropy(model(batch["samples"][:, :-1]), batch["samples"][:, 1:])

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


class SpeechDecoder(nn.Module):
    """Tacotron's decoder: an LSTM cell a frame, attention that also looks at where it has been."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.prenet = nn.Sequential(nn.Linear(80, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 256), nn.ReLU())
        self.attention_cell = nn.LSTMCell(256 + width, 1024)
        self.decoder_cell = nn.LSTMCell(1024 + width, 1024)
        self.query, self.memory = nn.Linear(1024, 128, bias=False), nn.Linear(width, 128, bias=False)
        self.location = nn.Sequential(nn.Conv1d(2, 32, 31, padding=15, bias=False))
        self.place, self.energy = nn.Linear(32, 128, bias=False), nn.Linear(128, 1, bias=False)
        self.frame = nn.Linear(1024 + width, 80)

    def forward(self, memory: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
        count, tokens, width = memory.shape
        keys, inputs = self.memory(memory), self.prenet(frames)
        hidden = [memory.new_zeros(count, 1024) for _ in range(4)]
        context, weights = memory.new_zeros(count, width), memory.new_zeros(count, tokens)
        total, outputs = torch.zeros_like(weights), []
        for t in range(frames.shape[1]):
            hidden[0], hidden[1] = self.attention_cell(torch.cat([inputs[:, t], context], -1), (hidden[0], hidden[1]))
            seen = self.location(torch.stack([weights, total], dim=1)).transpose(1, 2)
            energy = self.energy(torch.tanh(self.query(hidden[0])[:, None] + keys + self.place(seen))).squeeze(-1)
            weights = energy.softmax(-1)
            total = total + weights
            context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
            hidden[2], hidden[3] = self.decoder_cell(torch.cat([hidden[0], context], -1), (hidden[2], hidden[3]))
            outputs.append(self.frame(torch.cat([hidden[2], context], dim=-1)))
        return torch.stack(outputs, dim=1)


def text_to_speech(
    *, batch: int = 40, tokens: int = 110, frames: int = 130, width: int = 512, precision: str = "fp32",
    optimizer: str = "adam",
) -> Step:  # fmt: skip
    """Tacotron 2's shape: convolutions and a two-way LSTM over text, then the frame-by-frame decoder."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(150, width)
            self.convolutions = nn.ModuleList(
                [
                    nn.Sequential(nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU())
                    for _ in range(3)
                ]
            )
            self.encoder = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
            self.decoder = SpeechDecoder(width)

        def forward(self, text: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
            x = self.embed(text).transpose(1, 2)
            for layer in self.convolutions:
                x = F.dropout(layer(x), 0.5, self.training)
            return self.decoder(self.encoder(x.transpose(1, 2))[0], frames)

    model = Network().cuda().train()
    data = {"text": torch.randint(0, 150, (batch, tokens)), "mel": torch.randn(batch, frames + 1, 80)}

    def forward(model: nn.Module, batch: Batch) -> Any:
        predicted = model(batch["text"], batch["mel"][:, :-1])
        return F.mse_loss(predicted, batch["mel"][:, 1:])

    chosen = make_optimizer(optimizer, model.parameters())
    return train(model, data, forward, chosen, precision=precision, clip=1.0)


def lstm_translation(
    *, batch: int = 100, source: int = 60, target: int = 50, width: int = 800, vocabulary: int = 24000,
    precision: str = "bf16", optimizer: str = "sgd", style: str = "loop",
) -> Step:  # fmt: skip
    """An LSTM encoder and decoder with dot-product attention, one projection to the vocabulary at the end."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
            self.encoder = nn.LSTM(width, width, 2, batch_first=True, dropout=0.2)
            self.decoder = nn.LSTM(width, width, 2, batch_first=True, dropout=0.2)
            self.mix, self.output = nn.Linear(2 * width, width), nn.Linear(width, vocabulary)

        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            memory, state = self.encoder(self.source(source))
            hidden, _ = self.decoder(self.target(target), state)
            weights = torch.einsum("btd,bsd->bts", hidden, memory).softmax(-1)
            context = weights @ memory
            return self.output(torch.tanh(self.mix(torch.cat([hidden, context], dim=-1))))

    model = Network().cuda().train()
    data = {
        "source": torch.randint(0, vocabulary, (batch, source)),
        "target": torch.randint(0, vocabulary, (batch, target + 1)),
    }

    def forward(model: nn.Module, batch: Batch) -> Any:
        logits = model(batch["source"], batch["target"][:, :-1])
        return F.nll_loss(logits.log_softmax(-1).flatten(0, 1), batch["target"][:, 1:].flatten()), logits

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


def conv_lstm(
    *, batch: int = 16, frames: int = 12, size: int = 64, width: int = 96, layers: int = 2, precision: str = "fp32",
    optimizer: str = "rmsprop", style: str = "function",
) -> Step:  # fmt: skip
    """Radar nowcasting: convolutional LSTM cells unrolled over the frames, the last frames predicted."""

    class Cell(nn.Module):
        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.gates = nn.Conv2d(inputs + width, 4 * width, 5, padding=2)
            self.norm = nn.GroupNorm(8, 4 * width)

        def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> Any:
            hidden, memory = state
            i, f, o, g = self.norm(self.gates(torch.cat([x, hidden], dim=1))).chunk(4, dim=1)
            memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(memory), memory

    cells = nn.ModuleList([Cell(1 if i == 0 else width) for i in range(layers)])
    model = nn.ModuleDict({"cells": cells, "output": nn.Conv2d(width, 1, 1)}).cuda()

    def forward(model: Any, batch: Batch) -> Any:
        video = batch["video"]
        zeros = torch.zeros(batch["video"].shape[0], width, size, size, device=video.device)
        states = [(zeros, zeros)] * layers
        loss: Any = 0.0
        for t in range(frames):
            x = video[:, t]
            for i, cell in enumerate(model["cells"]):
                states[i] = cell(x, states[i])
                x = states[i][0]
            loss = loss + F.mse_loss(model["output"](x), video[:, t + 1])
        return loss

    data = {"video": torch.rand(batch, frames + 1, 1, size, size)}
    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


class RelativeAttention(nn.Module):
    """Transformer-XL's attention over the cached memory and the segment, relative positions by a shift."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.pair = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.relative, self.output = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.content = nn.Parameter(torch.zeros(heads, width // heads))
        self.place = nn.Parameter(torch.zeros(heads, width // heads))

    def forward(self, x: torch.Tensor, memory: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        full = torch.cat([memory.to(x.dtype), x], dim=1)
        (count, length, width), total = x.shape, full.shape[1]
        q = self.query(x).view(count, length, self.heads, -1)
        k, v = self.pair(full).view(count, total, self.heads, -1).chunk(2, dim=-1)
        r = self.relative(positions).view(total, self.heads, -1)
        by_content = torch.einsum("bihd,bjhd->bhij", q + self.content, k)
        by_place = torch.einsum("bihd,jhd->bhij", q + self.place, r)
        padded = F.pad(by_place, (1, 0)).view(count, self.heads, total + 1, length)
        scores = (by_content + padded[:, :, 1:].reshape(by_place.shape)) / math.sqrt(width // self.heads)
        later = torch.ones(length, total, dtype=torch.bool, device=x.device).triu(1 + total - length)
        weights = F.dropout(scores.masked_fill(later, -1e4).softmax(-1), 0.1, self.training)
        return self.output(torch.einsum("bhij,bjhd->bihd", weights, v).reshape(count, length, width))


def transformer_xl(
    *, batch: int = 8, length: int = 256, memory: int = 256, width: int = 640, layers: int = 10, heads: int = 10,
    vocabulary: int = 20000, precision: str = "fp16", optimizer: str = "adam",
) -> Step:  # fmt: skip
    """Segment recurrence: hidden states of the last segment, detached, live on into the next step."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            self.attention = nn.ModuleList([RelativeAttention(width, heads) for _ in range(layers)])
            self.inner = nn.ModuleList(
                [nn.Sequential(nn.Linear(width, 2560), nn.ReLU(), nn.Linear(2560, width)) for _ in range(layers)]
            )
            self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2 * layers)])
            self.output = nn.Linear(width, vocabulary)

    model = Network().cuda().train()
    chosen = make_optimizer(optimizer, model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=FIRST_SCALE, enabled=precision == "fp16")
    text = torch.randint(0, vocabulary, (batch, length + 1))
    inverse = 1 / 10000 ** (torch.arange(0, width, 2, device="cuda") / width)

    def loop() -> Iterator[None]:
        memories = [torch.zeros(batch, memory, width, device="cuda") for _ in range(layers)]
        while True:
            ids = text.to("cuda")
            angles = torch.arange(length + memory - 1, -1, -1.0, device="cuda")[:, None] * inverse
            positions = torch.cat([angles.sin(), angles.cos()], dim=-1)
            with autocast_for(precision):
                x, kept = model.embed(ids[:, :-1]), []
                for i in range(layers):
                    kept.append(x.detach())
                    x = model.norms[2 * i](x + model.attention[i](x, memories[i], positions))
                    x = model.norms[2 * i + 1](x + model.inner[i](x))
                loss = F.cross_entropy(model.output(x).flatten(0, 1), ids[:, 1:].flatten())
            memories = [torch.cat([old, new], dim=1)[:, -memory:] for old, new in zip(memories, kept, strict=True)]
            chosen.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(chosen)
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            scaler.step(chosen)
            scaler.update()
            yield

    iterations = loop()
    return lambda: next(iterations)


def state_space(
    *, batch: int = 8, length: int = 8192, width: int = 256, state: int = 64, layers: int = 6, precision: str = "fp32",
    optimizer: str = "adamw", style: str = "function",
) -> Step:  # fmt: skip
    """S4D: a complex diagonal recurrence as one long convolution by FFT."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = nn.Parameter(torch.rand(width) * 4 - 7)
            self.decay = nn.Parameter(torch.full((width, state // 2), -0.7))
            self.turn = nn.Parameter(math.pi * torch.arange(state // 2).expand(width, -1).clone())
            self.mix = nn.Parameter(torch.randn(width, state // 2, 2) * 0.5)
            self.skip = nn.Parameter(torch.randn(width))
            self.norm, self.output = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            u = self.norm(x).transpose(1, 2)
            poles = torch.complex(-self.decay.exp(), self.turn) * self.step.exp()[:, None]
            scale = torch.view_as_complex(self.mix) * (poles.exp() - 1) / poles
            powers = torch.exp(poles.unsqueeze(-1) * torch.arange(length, device=x.device))
            kernel = 2 * torch.einsum("hn,hnl->hl", scale, powers).real
            spectrum = torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
            y = torch.fft.irfft(spectrum, n=2 * length)[..., :length] + u * self.skip[:, None]
            return x + F.glu(self.output(F.gelu(y)), dim=1).transpose(1, 2)

    model = nn.Sequential(nn.Linear(3, width), *[Layer() for _ in range(layers)], nn.Linear(width, 10)).cuda()
    data = {"x": torch.randn(batch, length, 3), "y": torch.randint(0, 10, (batch,))}

    def forward(model: nn.Module, batch: Batch) -> Any:
        return F.cross_entropy(model(batch["x"]).mean(dim=1), batch["y"])

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


def graph_attention(
    *, nodes: int = 50_000, edges: int = 700_000, width: int = 32, heads: int = 6, layers: int = 3,
    optimizer: str = "adam", precision: str = "fp32", style: str = "function",
) -> Step:  # fmt: skip
    """GAT: a softmax over the edges of every node, by scatter."""

    class Layer(nn.Module):
        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.project = nn.Linear(inputs, heads * width, bias=False)
            self.source, self.target = (nn.Parameter(torch.randn(heads, width) * 0.1) for _ in range(2))

        def forward(self, x: torch.Tensor, edge: torch.Tensor) -> torch.Tensor:
            h = self.project(x).view(-1, heads, width)
            score = (h * self.source).sum(-1)[edge[0]] + (h * self.target).sum(-1)[edge[1]]
            score = F.leaky_relu(score, 0.2)
            index = edge[1].unsqueeze(-1).expand_as(score)
            top = torch.full((h.shape[0], heads), -1e9, device=x.device).scatter_reduce(
                0, index, score.detach(), "amax"
            )
            weight = (score - top[edge[1]]).exp()
            total = torch.zeros_like(top).scatter_add(0, index, weight)
            weight = F.dropout(weight / (total[edge[1]] + 1e-9), 0.3, self.training)
            gathered = torch.zeros_like(h).index_add(0, edge[1], h[edge[0]] * weight.unsqueeze(-1))
            return F.elu(gathered.flatten(1))

    stack = [Layer(128 if i == 0 else heads * width) for i in range(layers)]
    model = nn.ModuleList([*stack, nn.Linear(heads * width, 40)]).cuda().train()
    data = {
        "x": torch.randn(nodes, 128), "edge": torch.randint(0, nodes, (2, edges)),
        "y": torch.randint(0, 40, (nodes,)), "chosen": torch.randperm(nodes)[: nodes // 2],
    }  # fmt: skip

    def forward(model: Any, batch: Batch) -> Any:
        x = batch["x"]
        for layer in model[:-1]:
            x = layer(x, batch["edge"])
        picked = batch["chosen"]
        return F.cross_entropy(model[-1](x)[picked], batch["y"][picked])

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)
