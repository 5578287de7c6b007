"""A recurrent state-space model with an actor and a critic trained in imagination: distributions, a target network."""

import copy

import torch
from torch import nn
from torch.distributions import Independent, Normal, OneHotCategorical, kl_divergence

torch.manual_seed(0)
encoder = nn.Sequential(
    nn.Conv2d(3, 48, 4, 2),
    nn.ELU(),
    nn.Conv2d(48, 96, 4, 2),
    nn.ELU(),
    nn.Conv2d(96, 192, 4, 2),
    nn.ELU(),
    nn.Flatten(),
    nn.LazyLinear(1024),
).cuda()
decoder = nn.Sequential(
    nn.Linear(600 + 1024, 4608),
    nn.Unflatten(1, (128, 6, 6)),
    nn.ConvTranspose2d(128, 64, 4, 2),
    nn.ELU(),
    nn.ConvTranspose2d(64, 48, 5, 2),
    nn.ELU(),
    nn.ConvTranspose2d(48, 3, 6, 2),
).cuda()
cell, prior, posterior = nn.GRUCell(600, 600).cuda(), nn.Linear(600, 1024).cuda(), nn.Linear(600 + 1024, 1024).cuda()
into = nn.Linear(1024 + 6, 600).cuda()
actor = nn.Sequential(nn.Linear(1624, 400), nn.ELU(), nn.Linear(400, 12)).cuda()
critic = nn.Sequential(nn.Linear(1624, 400), nn.ELU(), nn.Linear(400, 1)).cuda()
target = copy.deepcopy(critic)
encoder(torch.zeros(1, 3, 64, 64, device="cuda"))
world = [
    *encoder.parameters(),
    *decoder.parameters(),
    *cell.parameters(),
    *prior.parameters(),
    *posterior.parameters(),
    *into.parameters(),
]
optimizers = [
    torch.optim.Adam(world, 2e-4),
    torch.optim.Adam(actor.parameters(), 4e-5),
    torch.optim.Adam(critic.parameters(), 1e-4),
]


def code(logits):
    logits = logits.view(-1, 32, 32)
    spread = OneHotCategorical(logits=logits)
    sample = spread.sample() + spread.probs - spread.probs.detach()
    return sample.flatten(1), Independent(spread, 1)


for step in range(3):
    frames, actions = torch.rand(16, 20, 3, 64, 64, device="cuda"), torch.randn(16, 20, 6, device="cuda")
    seen = encoder(frames.flatten(0, 1)).view(16, 20, -1)
    h, z = torch.zeros(16, 600, device="cuda"), torch.zeros(16, 1024, device="cuda")
    states, divergence = [], 0
    for t in range(20):
        h = cell(torch.relu(into(torch.cat([z, actions[:, t]], -1))), h)
        _, expected = code(prior(h))
        z, observed = code(posterior(torch.cat([h, seen[:, t]], -1)))
        divergence = divergence + kl_divergence(observed, expected).mean()
        states.append(torch.cat([h, z], -1))
    states = torch.stack(states, 1).flatten(0, 1)
    picture = decoder(states)[..., :64, :64]
    loss = (picture - frames.flatten(0, 1)).square().sum((1, 2, 3)).mean() + divergence
    optimizers[0].zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(world, 100)
    optimizers[0].step()
    h, z = states.detach().split([600, 1024], -1)
    values, entropies = [], 0
    for _ in range(10):
        mean, std = actor(torch.cat([h, z], -1)).chunk(2, -1)
        choice = Independent(Normal(torch.tanh(mean), nn.functional.softplus(std) + 0.1), 1)
        entropies = entropies + choice.entropy().mean()
        h = cell(torch.relu(into(torch.cat([z, choice.rsample()], -1))), h)
        z, _ = code(prior(h))
        values.append(torch.cat([h, z], -1))
    imagined = torch.stack(values)
    returns = target(imagined).squeeze(-1)
    for optimizer, goal in (
        (optimizers[1], -(returns.mean() + 1e-3 * entropies)),
        (optimizers[2], (critic(imagined.detach()).squeeze(-1) - returns.detach()).square().mean()),
    ):
        optimizer.zero_grad()
        goal.backward()
        optimizer.step()
    with torch.no_grad():
        for mine, other in zip(target.parameters(), critic.parameters(), strict=True):
            mine.lerp_(other, 0.02)
print(loss.item())
