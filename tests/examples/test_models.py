"""The examples' own models: the published sizes and parameter names, and that they compute."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

EXAMPLES = Path(__file__).parents[2] / "examples"
Load = Callable[[str, str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """`load(folder, module)`: import a module of an example; it is forgotten after the test."""

    def load_module(folder: str, name: str) -> ModuleType:
        monkeypatch.syspath_prepend(EXAMPLES / folder)
        return importlib.import_module(name)

    yield load_module
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(EXAMPLES)):
            del sys.modules[name]


def layout(model: nn.Module) -> str:
    """A digest of the names and shapes of everything that a checkpoint holds."""
    lines = sorted(f"{name} {list(tensor.shape)}" for name, tensor in model.state_dict().items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_vrt_is_the_published_network(load: Load) -> None:
    pytest.importorskip("torchvision")
    train = load("vrt-deblurring", "train")
    network = train.build_network(train.read_options(EXAMPLES / "vrt-deblurring/gopro.json"))
    assert parameters(network) == 18_320_007
    assert layout(network) == "4eab3bf9fdcf6d1708185e5474139599d0446178bcfa9863e160dadd3d0002bb"


@pytest.mark.slow
def test_vrt_restores_clips_that_no_window_divides(load: Load) -> None:
    pytest.importorskip("torchvision")
    vrt = load("vrt-deblurring", "vrt")
    torch.manual_seed(0)
    network = vrt.VRT(
        window_size=[6, 8, 8], depths=[2] * 8, embed_dims=[12] * 8, num_heads=[2] * 8, indep_reconsts=[7],
        deformable_groups=4,
    )  # fmt: skip
    clip = torch.rand(1, 2, 3, 64, 72)
    with torch.no_grad():
        restored = network(clip)
    assert restored.shape == clip.shape
    assert restored.isfinite().all()


def test_kair_options_may_have_comments(load: Load, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    train = load("vrt-deblurring", "train")
    path = tmp_path / "options.json"
    path.write_text('{"path": "http://host//a" // not "this"\n, "n": [1, 2] // nor // this\n}')
    assert train.read_options(path) == {"path": "http://host//a", "n": [1, 2]}


def test_fno_refines(load: Load) -> None:
    fno = load("diffsr-fno", "fno")
    model = fno.FNO2d(
        modes1=[4, 3], modes2=[3, 4], layers=[8, 6, 5], fc_dim=7, in_dim=2, out_dim=1, upsample_factor=[4, 2]
    )
    assert model(torch.randn(3, 2, 8, 12)).shape == (3, 1, 32, 24)
    with pytest.raises(ValueError, match="one entry more"):
        fno.FNO2d(modes1=[4], modes2=[4], layers=[8], fc_dim=7, in_dim=1, out_dim=1, upsample_factor=[2, 2])


def test_vision_tower_is_the_published_one(load: Load) -> None:
    vision = load("vla-vggt-llama", "vision")
    with torch.device("meta"):
        tower = vision.Tower()
        tokens = tower(torch.empty(2, 3, 3, 518, 518))
    assert tokens.shape == (2, 3, 37 * 37 + 5, 2048)
    assert parameters(tower) == 909_112_320
    assert layout(tower) == "a843f48360934e2c27cfe121ad9de81a7875c251d7a241ab356a05658f46617b"


def test_folders_hold_the_published_models() -> None:
    diffusers, transformers = pytest.importorskip("diffusers"), pytest.importorskip("transformers")
    folder = EXAMPLES / "cogvideox-unlearning/CogVideoX-5b"
    with torch.device("meta"):
        for kind, name, count in (
            (diffusers.CogVideoXTransformer3DModel, "transformer", 5_570_283_072),
            (diffusers.AutoencoderKLCogVideoX, "vae", 215_583_907),
        ):
            assert parameters(kind.from_config(kind.load_config(folder, subfolder=name))) == count
        config = transformers.T5Config.from_pretrained(folder, subfolder="text_encoder")
        assert parameters(transformers.T5EncoderModel(config)) == 4_762_310_656
        for example in ("llm-lora", "vla-vggt-llama"):
            config = transformers.AutoConfig.from_pretrained(EXAMPLES / example / "Llama-2-7b")
            assert parameters(transformers.AutoModelForCausalLM.from_config(config)) == 6_738_415_616
