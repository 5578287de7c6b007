"""Training steps as people write them in a first script: small models, own loops, library models with own heads.

They are timed on a quiet machine (lab/measuring/quiet.py) and were never fitted to. Each factory returns its step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.workloads.common import Step, autocast_for, make_optimizer


def mlp(*, batch: int = 128, width: int = 256, layers: int = 4, optimizer: str = "adam", read: bool = False) -> Step:
    """A classifier of vectors; `read` prints the loss after every step as many scripts do."""
    blocks: list[nn.Module] = [nn.Flatten(), nn.Linear(784, width), nn.ReLU()]
    for _ in range(layers - 2):
        blocks += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*blocks, nn.Linear(width, 10)).cuda()
    chosen = make_optimizer(optimizer, model.parameters())
    images, labels = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))

    def step() -> None:
        x, y = images.to("cuda"), labels.to("cuda")
        chosen.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        chosen.step()
        if read:
            loss.item()

    return step


def policy_gradient(*, batch: int = 64, width: int = 64, actions: int = 6, epochs: int = 4) -> Step:
    """The update of PPO: several passes over shuffled minibatches, clipped ratios, an entropy bonus."""
    actor = nn.Sequential(
        nn.Linear(17, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, actions)
    )
    critic = nn.Sequential(nn.Linear(17, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
    actor, critic = actor.cuda(), critic.cuda()
    log_std = nn.Parameter(torch.zeros(1, actions, device="cuda"))
    parameters = [*actor.parameters(), *critic.parameters(), log_std]
    chosen = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5)
    n = batch * epochs
    states, taken = torch.randn(n, 17, device="cuda"), torch.randn(n, actions, device="cuda")
    old, advantages, returns = (torch.randn(n, device="cuda") for _ in range(3))
    number = 0

    def step() -> None:
        nonlocal number
        part = slice(number % epochs * batch, (number % epochs + 1) * batch)
        number += 1
        mean = actor(states[part])
        spread = torch.distributions.Normal(mean, log_std.expand_as(mean).exp(), validate_args=False)
        ratio = (spread.log_prob(taken[part]).sum(1) - old[part]).exp()
        gain = advantages[part]
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()
        value = 0.5 * (critic(states[part]).view(-1) - returns[part]).pow(2).mean()
        loss = policy - 0.01 * spread.entropy().sum(1).mean() + 0.5 * value
        chosen.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        chosen.step()

    return step


def q_learning(*, batch: int = 32, actions: int = 4) -> Step:
    """DQN on Atari frames: a target network, a batch that comes from the replay buffer in RAM."""

    def network() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions),
        ).cuda()  # fmt: skip

    online, target = network(), network()
    target.load_state_dict(online.state_dict())
    chosen = torch.optim.Adam(online.parameters(), lr=1e-4)
    frames = torch.randint(0, 255, (2, batch, 4, 84, 84), dtype=torch.uint8)
    taken, rewards = torch.randint(0, actions, (batch, 1)), torch.randn(batch)

    def step() -> None:
        now, then = frames[0].to("cuda"), frames[1].to("cuda")
        action, reward = taken.to("cuda"), rewards.to("cuda")
        with torch.no_grad():
            aim = reward + 0.99 * target(then / 255.0).max(dim=1)[0]
        value = online(now / 255.0).gather(1, action).squeeze()
        loss = F.smooth_l1_loss(value, aim)
        chosen.zero_grad()
        loss.backward()
        chosen.step()

    return step


class _Tagger(nn.Module):
    def __init__(self, kind: str, width: int, layers: int, two_way: bool, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        recurrent = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind]
        self.recurrent = recurrent(width, width, layers, batch_first=True, bidirectional=two_way, dropout=0.1)
        self.head = nn.Linear(width * (1 + two_way), 17)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.embedding(ids))
        return self.head(hidden)


def tagger(
    *, kind: str = "lstm", batch: int = 32, length: int = 60, width: int = 256, layers: int = 2, two_way: bool = True,
    words: int = 8000, precision: str = "fp32", optimizer: str = "adam",
) -> Step:  # fmt: skip
    model = _Tagger(kind, width, layers, two_way, words).cuda()
    chosen = make_optimizer(optimizer, model.parameters())
    ids, tags = torch.randint(0, words, (batch, length)), torch.randint(0, 17, (batch, length))

    def step() -> None:
        x, y = ids.to("cuda"), tags.to("cuda")
        with autocast_for(precision):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        chosen.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        chosen.step()

    return step


def cell_loop(*, kind: str = "lstm", batch: int = 32, length: int = 40, width: int = 256) -> Step:
    """A recurrent cell called once for every time step."""
    cell: Any = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}[kind](64, width).cuda()
    head = nn.Linear(width, 1).cuda()
    parameters = [*cell.parameters(), *head.parameters()]
    chosen = torch.optim.Adam(parameters, lr=1e-3)
    series, aims = torch.randn(length, batch, 64), torch.randn(batch, 1)

    def step() -> None:
        x, y = series.to("cuda"), aims.to("cuda")
        h, c = torch.zeros(batch, width, device="cuda"), torch.zeros(batch, width, device="cuda")
        for t in range(length):
            if kind == "lstm":
                h, c = cell(x[t], (h, c))
            else:
                h = cell(x[t], h)
        loss = F.mse_loss(head(h), y)
        chosen.zero_grad()
        loss.backward()
        chosen.step()

    return step


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class _Gpt(nn.Module):
    def __init__(self, words: int, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([_Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _step_in_backward(model: nn.Module, optimizer: str) -> None:
    """Each parameter has an optimizer of its own, which steps as soon as its gradient is there."""
    by_parameter = {p: make_optimizer(optimizer, [p]) for p in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        by_parameter[parameter].step()
        by_parameter[parameter].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)


def gpt(
    *, batch: int = 8, length: int = 256, width: int = 384, layers: int = 6, heads: int = 6, words: int = 8192,
    precision: str = "bf16", optimizer: str = "adamw", in_backward: bool = False, clip: bool = True,
    accumulate: int = 1,
) -> Step:  # fmt: skip
    """A plain GPT; `in_backward` steps an optimizer of its own for each parameter as soon as its gradient is there."""
    model = _Gpt(words, width, layers, heads, length).cuda()
    ids = torch.randint(0, words, (batch, length + 1))
    if in_backward:
        _step_in_backward(model, optimizer)
    else:
        chosen = make_optimizer(optimizer, model.parameters())

    def step() -> None:
        for _ in range(accumulate):
            x = ids.to("cuda")
            with autocast_for(precision):
                loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            (loss / accumulate).backward()
        if not in_backward:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            chosen.step()
            chosen.zero_grad(set_to_none=True)

    return step


class _Lora(nn.Module):
    def __init__(self, base: nn.Module, like: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(like.in_features, rank, bias=False, device="cuda")
        self.b = nn.Linear(rank, like.out_features, bias=False, device="cuda")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.b(self.a(x)) * 2.0


class _FourBit(nn.Module):
    """A weight of 4-bit codes with a scale for each block of 64, unpacked in every call."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        count = base.in_features * base.out_features
        self.register_buffer("codes", torch.randint(0, 255, (count // 2,), dtype=torch.uint8, device="cuda"))
        self.register_buffer("scales", torch.rand(count // 64, device="cuda") * 0.02)
        self.register_buffer("table", torch.linspace(-1, 1, 16, device="cuda"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = torch.stack((self.codes >> 4, self.codes & 15), dim=1)
        values = self.table[codes.long()].view(-1, 64) * self.scales[:, None]
        return F.linear(x, values.view(self.out_features, self.in_features).to(x.dtype))


def adapted_gpt(
    *, batch: int = 4, length: int = 512, width: int = 768, layers: int = 12, rank: int = 8, four_bit: bool = False,
) -> Step:  # fmt: skip
    """LoRA written by hand around a frozen GPT, whose weights may be kept in 4 bits."""
    model = _Gpt(16384, width, layers, width // 64, length).cuda().to(torch.bfloat16).requires_grad_(False)
    for block in model.blocks:
        for name in ("qkv", "out", "up", "down"):
            base: Any = getattr(block, name)
            setattr(block, name, _Lora(_FourBit(base) if four_bit else base, base, rank))
    trained = [p for p in model.parameters() if p.requires_grad]
    chosen = torch.optim.AdamW(trained, lr=1e-4)
    ids = torch.randint(0, 16384, (batch, length + 1))

    def step() -> None:
        x = ids.to("cuda")
        with autocast_for("bf16"):
            loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1).float(), x[:, 1:].flatten())
        loss.backward()
        chosen.step()
        chosen.zero_grad()

    return step


def small_cnn(*, batch: int = 64, width: int = 32, norm: str = "batch", optimizer: str = "adadelta") -> Step:
    """The network of the MNIST example and its like."""
    normed: Callable[[int], nn.Module] = {
        "batch": nn.BatchNorm2d, "group": lambda c: nn.GroupNorm(8, c), "none": lambda c: nn.Identity(),
    }[norm]  # fmt: skip
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), normed(width), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, padding=1),
        normed(2 * width), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
        nn.Linear(2 * width * 256, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    ).cuda()  # fmt: skip
    chosen = make_optimizer(optimizer, model.parameters())
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))

    def step() -> None:
        x, y = images.to("cuda"), labels.to("cuda")
        chosen.zero_grad()
        F.nll_loss(F.log_softmax(model(x), dim=1), y).backward()
        chosen.step()

    return step


def torchvision_net(
    *, name: str, batch: int = 32, size: int = 224, precision: str = "fp32", optimizer: str = "sgd-momentum",
    channels_last: bool = False, in_backward: bool = False,
) -> Step:  # fmt: skip
    import torchvision

    model = torchvision.models.get_model(name, num_classes=100).cuda()
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    if in_backward:
        _step_in_backward(model, optimizer)
    else:
        chosen = make_optimizer(optimizer, model.parameters())
    images, labels = torch.randn(batch, 3, size, size), torch.randint(0, 100, (batch,))

    def step() -> None:
        x, y = images.to("cuda"), labels.to("cuda")
        if channels_last:
            x = x.to(memory_format=torch.channels_last)
        with autocast_for(precision):
            loss = F.cross_entropy(model(x), y)
        if not in_backward:
            chosen.zero_grad()
        loss.backward()
        if not in_backward:
            chosen.step()

    return step


def transformers_model(
    *, kind: str, batch: int = 8, length: int = 128, layers: int = 6, width: int = 512, precision: str = "fp32",
    optimizer: str = "adamw", scheduled: bool = True,
) -> Step:  # fmt: skip
    """A model of transformers with its own loss, built from a configuration."""
    import transformers

    heads, words = width // 64, 16000
    common = {"vocab_size": words, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    made: dict[str, Callable[[], Any]] = {
        "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**common, intermediate_size=4 * width)),
        "roberta": lambda: transformers.RobertaForSequenceClassification(
            transformers.RobertaConfig(**common, intermediate_size=4 * width, num_labels=3)
        ),
        "distilbert": lambda: transformers.DistilBertForMaskedLM(
            transformers.DistilBertConfig(
                vocab_size=words, dim=width, n_layers=layers, n_heads=heads, hidden_dim=4 * width
            )
        ),
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=words, n_embd=width, n_layer=layers, n_head=heads)
        ),
        "llama": lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**common, intermediate_size=3 * width, num_key_value_heads=heads // 2)
        ),
        "qwen2": lambda: transformers.Qwen2ForCausalLM(
            transformers.Qwen2Config(**common, intermediate_size=3 * width, num_key_value_heads=heads // 2)
        ),
        "t5": lambda: transformers.T5ForConditionalGeneration(
            transformers.T5Config(
                vocab_size=words, d_model=width, d_kv=64, d_ff=4 * width, num_layers=layers, num_heads=heads,
                decoder_start_token_id=0,
            )
        ),
        "vit": lambda: transformers.ViTForImageClassification(
            transformers.ViTConfig(
                hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width
            )
        ),
    }  # fmt: skip
    model = made[kind]().cuda().train()
    chosen = make_optimizer(optimizer, model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(chosen, lambda n: 1.0 / (1 + n))
    if kind == "vit":
        inputs = {"pixel_values": torch.randn(batch, 3, 224, 224), "labels": torch.randint(0, 2, (batch,))}
    else:
        ids = torch.randint(0, words, (batch, length))
        labels = torch.randint(0, 3, (batch,)) if kind == "roberta" else ids
        inputs = {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}

    def step() -> None:
        here = {name: value.to("cuda") for name, value in inputs.items()}
        with autocast_for(precision):
            loss = model(**here).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        chosen.step()
        if scheduled:
            schedule.step()
        chosen.zero_grad()

    return step


def gan(*, batch: int = 64, width: int = 64, size: int = 64, penalty: bool = False) -> Step:
    """DCGAN; with `penalty` the critic of WGAN-GP, which differentiates a gradient."""
    noise = 100
    stages = int(math.log2(size)) - 3
    wide = width * 2**stages
    making: list[nn.Module] = [
        nn.ConvTranspose2d(noise, wide, 4, 1, 0, bias=False),
        nn.BatchNorm2d(wide),
        nn.ReLU(True),
    ]
    for _ in range(stages):
        making += [nn.ConvTranspose2d(wide, wide // 2, 4, 2, 1, bias=False), nn.BatchNorm2d(wide // 2), nn.ReLU(True)]
        wide //= 2
    making += [nn.ConvTranspose2d(wide, 3, 4, 2, 1, bias=False), nn.Tanh()]
    judging: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)]
    for _ in range(stages):
        judging += [nn.Conv2d(wide, wide * 2, 4, 2, 1, bias=False)]
        judging += [nn.GroupNorm(8, wide * 2) if penalty else nn.BatchNorm2d(wide * 2), nn.LeakyReLU(0.2, not penalty)]
        wide *= 2
    judging += [nn.Conv2d(wide, 1, 4, 1, 0, bias=False)]
    generator, critic = nn.Sequential(*making).cuda(), nn.Sequential(*judging).cuda()
    for_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    images = torch.randn(batch, 3, size, size)

    def step() -> None:
        real = images.to("cuda")
        fake = generator(torch.randn(batch, noise, 1, 1, device="cuda"))
        critic.zero_grad()
        on_real, on_fake = critic(real).view(-1), critic(fake.detach()).view(-1)
        if penalty:
            share = torch.rand(batch, 1, 1, 1, device="cuda")
            mixed = (share * real + (1 - share) * fake.detach()).requires_grad_(True)
            scores = critic(mixed)
            (slope,) = torch.autograd.grad(scores, mixed, torch.ones_like(scores), create_graph=True)
            loss = on_fake.mean() - on_real.mean() + 10 * ((slope.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
        else:
            ones, zeros = torch.ones_like(on_real), torch.zeros_like(on_real)
            loss = F.binary_cross_entropy_with_logits(on_real, ones)
            loss = loss + F.binary_cross_entropy_with_logits(on_fake, zeros)
        loss.backward()
        for_critic.step()
        generator.zero_grad()
        (-critic(fake).mean()).backward()
        for_generator.step()

    return step


def autoencoder(*, batch: int = 128, width: int = 400, code: int = 20) -> Step:
    """The variational autoencoder of the examples, with the sum of its loss read in every step."""
    first, mean, spread = nn.Linear(784, width).cuda(), nn.Linear(width, code).cuda(), nn.Linear(width, code).cuda()
    back, out = nn.Linear(code, width).cuda(), nn.Linear(width, 784).cuda()
    parameters = [p for part in (first, mean, spread, back, out) for p in part.parameters()]
    chosen = torch.optim.Adam(parameters, lr=1e-3)
    images = torch.rand(batch, 1, 28, 28)
    total = 0.0

    def step() -> None:
        nonlocal total
        x = images.to("cuda").view(-1, 784)
        chosen.zero_grad()
        hidden = F.relu(first(x))
        mu, log_variance = mean(hidden), spread(hidden)
        z = mu + torch.exp(0.5 * log_variance) * torch.randn_like(mu)
        again = torch.sigmoid(out(F.relu(back(z))))
        loss = F.binary_cross_entropy(again, x, reduction="sum")
        loss = loss - 0.5 * torch.sum(1 + log_variance - mu.pow(2) - log_variance.exp())
        loss.backward()
        total += loss.item()
        chosen.step()

    return step


def radiance(*, rays: int = 1024, samples: int = 64, width: int = 256, depth: int = 8) -> Step:
    """NeRF: encoded points through a deep MLP with a skip, summed along each ray."""
    first = nn.ModuleList(
        [nn.Linear(63 if i == 0 else width + (63 if i == depth // 2 else 0), width) for i in range(depth)]
    ).cuda()
    head = nn.Linear(width, 4).cuda()
    parameters = [*first.parameters(), *head.parameters()]
    chosen = torch.optim.Adam(parameters, lr=5e-4)
    origins, colours = torch.randn(rays, 6), torch.rand(rays, 3)

    def step() -> None:
        ray, aim = origins.to("cuda"), colours.to("cuda")
        depths = torch.linspace(2.0, 6.0, samples, device="cuda") + torch.rand(rays, samples, device="cuda") * 0.05
        points = (ray[:, None, :3] + ray[:, None, 3:] * depths[..., None]).reshape(-1, 3)
        coded = [points]
        for frequency in range(10):
            coded += [torch.sin(2.0**frequency * points), torch.cos(2.0**frequency * points)]
        x = encoded = torch.cat(coded, -1)
        for number, layer in enumerate(first):
            if number == depth // 2:
                x = torch.cat([encoded, x], -1)
            x = F.relu(layer(x))
        out = head(x).view(rays, samples, 4)
        alpha = 1.0 - torch.exp(-F.relu(out[..., 3]) * 0.06)
        kept = torch.cumprod(torch.cat([torch.ones((rays, 1), device="cuda"), 1.0 - alpha + 1e-10], -1), -1)[:, :-1]
        colour = ((alpha * kept)[..., None] * torch.sigmoid(out[..., :3])).sum(-2)
        loss = ((colour - aim) ** 2).mean()
        chosen.zero_grad()
        loss.backward()
        chosen.step()

    return step


def graph(*, nodes: int = 2708, edges: int = 10556, width: int = 64, layers: int = 2) -> Step:
    """A graph convolution written with index_add."""
    widths = [1433, *[width] * (layers - 1), 7]
    linears = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(widths)]).cuda()
    chosen = torch.optim.Adam(linears.parameters(), lr=0.01, weight_decay=5e-4)
    x = torch.rand(nodes, 1433, device="cuda")
    source, target = (torch.randint(0, nodes, (edges,), device="cuda") for _ in range(2))
    y = torch.randint(0, 7, (nodes,), device="cuda")

    def step() -> None:
        h = x
        for number, linear in enumerate(linears):
            h = linear(F.dropout(h, 0.5))
            h = torch.zeros_like(h).index_add_(0, target, h[source])
            if number + 1 < len(linears):
                h = F.relu(h)
        loss = F.cross_entropy(h, y)
        chosen.zero_grad()
        loss.backward()
        chosen.step()

    return step


def recommender(
    *, batch: int = 2048, tables: int = 16, rows: int = 100_000, width: int = 32, optimizer: str = "adagrad"
) -> Step:
    """Embeddings and dense features that meet in pairwise products."""
    embeddings = nn.ModuleList([nn.Embedding(rows, width) for _ in range(tables)]).cuda()
    bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU()).cuda()
    pairs = (tables + 1) * tables // 2
    top = nn.Sequential(
        nn.Linear(pairs + width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
    ).cuda()
    parameters = [*embeddings.parameters(), *bottom.parameters(), *top.parameters()]
    chosen = make_optimizer(optimizer, parameters)
    dense, ids, clicks = torch.randn(batch, 13), torch.randint(0, rows, (batch, tables)), torch.rand(batch, 1)

    def step() -> None:
        d, i, y = dense.to("cuda"), ids.to("cuda"), clicks.to("cuda")
        below = bottom(d)
        vectors = torch.stack([below, *[table(i[:, n]) for n, table in enumerate(embeddings)]], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        a, b = torch.tril_indices(tables + 1, tables + 1, offset=-1, device="cuda")
        loss = F.binary_cross_entropy_with_logits(top(torch.cat([below, products[:, a, b]], dim=1)), y)
        chosen.zero_grad()
        loss.backward()
        chosen.step()

    return step


def experts(*, batch: int = 8, length: int = 128, width: int = 256, count: int = 8, layers: int = 4) -> Step:
    """A mixture of experts as a Python loop with a mask for each expert."""
    gates = nn.ModuleList([nn.Linear(width, count) for _ in range(layers)]).cuda()

    def expert() -> nn.Module:
        return nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    each = nn.ModuleList([nn.ModuleList([expert() for _ in range(count)]) for _ in range(layers)]).cuda()
    parameters = [*gates.parameters(), *each.parameters()]
    chosen = torch.optim.AdamW(parameters, lr=1e-4)
    data = torch.randn(batch * length, width)

    def step() -> None:
        x = data.to("cuda")
        for gate, group in zip(gates, each, strict=True):
            weights, picked = gate(x).softmax(-1).topk(2, dim=-1)
            y = torch.zeros_like(x)
            for number, chosen_expert in enumerate(group):  # type: ignore[arg-type]
                rows, place = torch.where(picked == number)
                y = y.index_add(0, rows, chosen_expert(x[rows]) * weights[rows, place, None])
            x = x + y
        loss = x.pow(2).mean()
        chosen.zero_grad()
        loss.backward()
        chosen.step()

    return step


def teacher_student(*, batch: int = 64, size: int = 32, momentum: float = 0.99) -> Step:
    """Two copies of a ResNet-18, one of which follows the other's weights in a loop over parameters."""
    import torchvision

    student = torchvision.models.resnet18(num_classes=128).cuda()
    teacher = torchvision.models.resnet18(num_classes=128).cuda().requires_grad_(False)
    chosen = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    views = torch.randn(2, batch, 3, size, size)

    def step() -> None:
        first, second = views[0].to("cuda"), views[1].to("cuda")
        q = F.normalize(student(first), dim=1)
        with torch.no_grad():
            for p, t in zip(student.parameters(), teacher.parameters(), strict=True):
                t.data.mul_(momentum).add_(p.data, alpha=1 - momentum)
            k = F.normalize(teacher(second), dim=1)
        scores = q @ k.T / 0.2
        loss = F.cross_entropy(scores, torch.arange(batch, device="cuda"))
        chosen.zero_grad()
        loss.backward()
        chosen.step()

    return step


def denoiser(*, batch: int = 32, size: int = 32, width: int = 64, precision: str = "fp32") -> Step:
    """A small diffusion U-Net with time embeddings, its noise schedule and an average of its weights."""

    class Res(nn.Module):
        def __init__(self, a: int, b: int) -> None:
            super().__init__()
            self.n1, self.c1 = nn.GroupNorm(8, a), nn.Conv2d(a, b, 3, padding=1)
            self.n2, self.c2 = nn.GroupNorm(8, b), nn.Conv2d(b, b, 3, padding=1)
            self.t, self.skip = nn.Linear(4 * width, b), nn.Conv2d(a, b, 1) if a != b else nn.Identity()

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            h = self.c1(F.silu(self.n1(x))) + self.t(F.silu(t))[:, :, None, None]
            return self.c2(F.silu(self.n2(h))) + self.skip(x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            w = width
            self.time = nn.Sequential(nn.Linear(w, 4 * w), nn.SiLU(), nn.Linear(4 * w, 4 * w))
            self.first = nn.Conv2d(3, w, 3, padding=1)
            self.down = nn.ModuleList([Res(w, w), Res(w, 2 * w), Res(2 * w, 4 * w)])
            self.middle = Res(4 * w, 4 * w)
            self.up = nn.ModuleList([Res(8 * w, 2 * w), Res(4 * w, w), Res(2 * w, w)])
            self.last = nn.Conv2d(w, 3, 3, padding=1)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            angles = t[:, None].float() * torch.exp(torch.arange(width // 2, device=x.device) * -0.2)[None]
            t = self.time(torch.cat([angles.sin(), angles.cos()], 1))
            x, kept = self.first(x), []
            for block in self.down:
                x = block(x, t)
                kept.append(x)
                x = F.avg_pool2d(x, 2)
            x = self.middle(x, t)
            for block in self.up:
                x = block(torch.cat([F.interpolate(x, scale_factor=2.0, mode="nearest"), kept.pop()], 1), t)
            return self.last(F.silu(x))

    model, average = Net().cuda(), Net().cuda().requires_grad_(False)
    chosen = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device="cuda"), 0)
    images = torch.randn(batch, 3, size, size)

    def step() -> None:
        x = images.to("cuda")
        t = torch.randint(0, 1000, (batch,), device="cuda")
        noise = torch.randn_like(x)
        share = kept[t].view(-1, 1, 1, 1)
        with autocast_for(precision):
            loss = F.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, t).float(), noise)
        chosen.zero_grad()
        loss.backward()
        chosen.step()
        with torch.no_grad():
            for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 0.001)

    return step


def translation(*, batch: int = 32, length: int = 40, width: int = 256, layers: int = 3, words: int = 10_000) -> Step:
    """nn.Transformer with masks, as in the tutorial on translation."""
    model = nn.Transformer(width, 8, layers, layers, 4 * width, batch_first=True).cuda()
    source, target, head = (
        nn.Embedding(words, width).cuda(),
        nn.Embedding(words, width).cuda(),
        nn.Linear(width, words).cuda(),
    )
    parameters = [*model.parameters(), *source.parameters(), *target.parameters(), *head.parameters()]
    chosen = torch.optim.Adam(parameters, lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    a, b = torch.randint(1, words, (batch, length)), torch.randint(1, words, (batch, length + 1))

    def step() -> None:
        x, y = a.to("cuda"), b.to("cuda")
        before = y[:, :-1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device="cuda")
        hidden = model(
            source(x) * math.sqrt(width), target(before) * math.sqrt(width), tgt_mask=mask,
            src_key_padding_mask=x == 0, tgt_key_padding_mask=before == 0, memory_key_padding_mask=x == 0,
        )  # fmt: skip
        loss = F.cross_entropy(head(hidden).flatten(0, 1), y[:, 1:].flatten(), ignore_index=0)
        chosen.zero_grad()
        loss.backward()
        chosen.step()

    return step


def physics(*, points: int = 10_000, width: int = 50, layers: int = 6) -> Step:
    """A network whose second derivatives are in the loss."""
    parts: list[nn.Module] = [nn.Linear(2, width), nn.Tanh()]
    for _ in range(layers - 2):
        parts += [nn.Linear(width, width), nn.Tanh()]
    model = nn.Sequential(*parts, nn.Linear(width, 1)).cuda()
    chosen = torch.optim.Adam(model.parameters(), lr=1e-3)
    where = torch.rand(points, 2, device="cuda")

    def step() -> None:
        x, t = (where[:, i : i + 1].clone().requires_grad_(True) for i in range(2))
        u = model(torch.cat([x, t], 1))
        ones = torch.ones_like(u)
        (u_t,) = torch.autograd.grad(u, t, ones, create_graph=True)
        (u_x,) = torch.autograd.grad(u, x, ones, create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x, x, torch.ones_like(u_x), create_graph=True)
        loss = ((u_t + u * u_x - 0.01 / math.pi * u_xx) ** 2).mean()
        chosen.zero_grad()
        loss.backward()
        chosen.step()

    return step


def per_sample(*, batch: int = 64, width: int = 16) -> Step:
    """Gradients of every sample with vmap, clipped and summed: differentially private SGD by hand."""
    from torch.func import functional_call, grad, vmap

    model = nn.Sequential(
        nn.Conv2d(1, width, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(width, 2 * width, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(),
        nn.Linear(2 * width * 16, 32), nn.ReLU(), nn.Linear(32, 10),
    ).cuda()  # fmt: skip
    chosen = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))

    def loss_of(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(model, weights, (x[None],)), y[None])

    each = vmap(grad(loss_of), in_dims=(None, 0, 0))

    def step() -> None:
        x, y = images.to("cuda"), labels.to("cuda")
        weights = {name: p.detach() for name, p in model.named_parameters()}
        grads = each(weights, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()], 1).norm(dim=1)
        shares = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for name, p in model.named_parameters():
            summed = torch.einsum("n,n...->...", shares, grads[name])
            p.grad = (summed + torch.randn_like(summed)) / batch
        chosen.step()
        chosen.zero_grad()

    return step


def segmentation(
    *, batch: int = 4, size: int = 256, width: int = 32, precision: str = "fp32", optimizer: str = "rmsprop"
) -> Step:
    """U-Net with bilinear upsampling, cross-entropy and a Dice term."""

    def double(a: int, b: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True),
            nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True),
        )  # fmt: skip

    widths = [width * 2**i for i in range(5)]
    downs = nn.ModuleList([double(a, b) for a, b in zip([3, *widths], widths, strict=False)]).cuda()
    ups = nn.ModuleList([double(a + b, a) for a, b in pairwise(widths)][::-1]).cuda()
    head = nn.Conv2d(width, 4, 1).cuda()
    parameters = [*downs.parameters(), *ups.parameters(), *head.parameters()]
    chosen = make_optimizer(optimizer, parameters)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16", init_scale=1.0)
    images, masks = torch.randn(batch, 3, size, size), torch.randint(0, 4, (batch, size, size))

    def step() -> None:
        x, y = images.to("cuda"), masks.to("cuda")
        with autocast_for(precision):
            kept = []
            for number, down in enumerate(downs):
                x = down(x if number == 0 else F.max_pool2d(x, 2))
                kept.append(x)
            kept.pop()
            for up in ups:
                skip = kept.pop()
                x = up(torch.cat([skip, F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)], 1))
            scores = head(x)
            loss = F.cross_entropy(scores, y)
            shares, truth = F.softmax(scores, dim=1).float(), F.one_hot(y, 4).permute(0, 3, 1, 2).float()
            common = (shares * truth).sum(dim=(2, 3))
            loss = loss + 1 - (2 * common / (shares.sum(dim=(2, 3)) + truth.sum(dim=(2, 3)) + 1e-6)).mean()
        chosen.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(chosen)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(chosen)
        scaler.update()

    return step
