"""Lightning with manual optimization: two optimizers that toggle, a schedule each, 16-bit, validation, gradient clipping."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.g = nn.Sequential(
            nn.Linear(128, 512 * 16),
            nn.Unflatten(1, (512, 4, 4)),
            *[
                m
                for i, o in ((512, 256), (256, 128), (128, 64))
                for m in (nn.ConvTranspose2d(i, o, 4, 2, 1), nn.BatchNorm2d(o), nn.ReLU())
            ],
            nn.ConvTranspose2d(64, 3, 4, 2, 1),
            nn.Tanh(),
        )
        self.d = nn.Sequential(
            *[
                m
                for i, o in ((3, 64), (64, 128), (128, 256), (256, 512))
                for m in (nn.Conv2d(i, o, 4, 2, 1), nn.InstanceNorm2d(o), nn.LeakyReLU(0.2))
            ],
            nn.Flatten(),
            nn.Linear(512 * 16, 1),
        )

    def training_step(self, batch, index):
        (real,) = batch
        first, second = self.optimizers()
        noise = torch.randn(len(real), 128, device=self.device)
        self.toggle_optimizer(first)
        loss = nn.functional.softplus(-self.d(self.g(noise))).mean()
        first.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(first, 1.0, "norm")
        first.step()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        critic = (
            nn.functional.softplus(self.d(self.g(noise).detach())).mean() + nn.functional.softplus(-self.d(real)).mean()
        )
        second.zero_grad()
        self.manual_backward(critic)
        second.step()
        self.untoggle_optimizer(second)
        for schedule in self.lr_schedulers():
            schedule.step()
        self.log_dict({"g": loss, "d": critic}, prog_bar=True)

    def validation_step(self, batch, index):
        self.log("real", self.d(batch[0]).mean())

    def configure_optimizers(self):
        optimizers = [torch.optim.Adam(p.parameters(), 2e-4, betas=(0.5, 0.999)) for p in (self.g, self.d)]
        return optimizers, [torch.optim.lr_scheduler.StepLR(o, 2, 0.9) for o in optimizers]


images = TensorDataset(torch.rand(512, 3, 64, 64) * 2 - 1)
trainer = L.Trainer(
    max_epochs=2,
    limit_train_batches=3,
    limit_val_batches=2,
    precision="16-mixed",
    accelerator="gpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    num_sanity_val_steps=1,
)
trainer.fit(Gan(), DataLoader(images, 64, shuffle=True), DataLoader(images, 128))
