"""Lightning: a LightningModule with two optimizers' groups, accumulation, clipping, an EMA callback and validation."""

import copy
import tempfile
import warnings

import lightning as L
import torch
import torchvision
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Average(L.Callback):
    def __init__(self, decay=0.99):
        self.decay = decay

    def on_fit_start(self, trainer, module):
        self.network = copy.deepcopy(module.network).eval()

    @torch.no_grad()
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        for slow, fast in zip(self.network.state_dict().values(), module.network.state_dict().values()):
            slow.copy_(slow * self.decay + fast * (1 - self.decay) if slow.is_floating_point() else fast)

    def on_validation_start(self, trainer, module):
        if hasattr(self, "network"):
            module.network, self.network = self.network, module.network

    def on_validation_end(self, trainer, module):
        if hasattr(self, "network"):
            module.network, self.network = self.network, module.network


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = torchvision.models.resnet34(num_classes=20)

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("right", (self.network(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        heads = [p for name, p in self.named_parameters() if "fc" in name]
        body = [p for name, p in self.named_parameters() if "fc" not in name]
        optimizer = torch.optim.AdamW([{"params": body}, {"params": heads, "lr": 1e-2}], lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]


L.seed_everything(1, verbose=False)
data = TensorDataset(torch.randn(192, 3, 160, 160), torch.randint(0, 20, (192,)))
trainer = L.Trainer(
    max_epochs=2, accelerator="gpu", devices=1, precision="16-mixed", accumulate_grad_batches=2, gradient_clip_val=1.0,
    callbacks=[Average()], logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, default_root_dir=tempfile.mkdtemp(), num_sanity_val_steps=1,
)  # fmt: skip
trainer.fit(Classifier(), DataLoader(data, 32, shuffle=True), DataLoader(data, 64))
