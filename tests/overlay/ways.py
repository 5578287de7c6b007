"""A training script that writes, replaces and deletes files in every way its author could think of, and looks each time
whether it is as if it had: what was written can be listed, has its size, and is read back. The test around it looks
whether the real files are as they were.

Each way gets a folder of its own, in which files lie already (OLD in test_ways.py), each with its name as content.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import gzip
import io
import json
import logging
import mmap
import multiprocessing
import os
import pathlib
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

WIDTH = 128
WEIGHTS_BYTES = (WIDTH * WIDTH + WIDTH) * 4

Way = Callable[[], None]
WAYS: dict[str, Way] = {}
NOT_IN_PYTHON: set[str] = set()
"""Other programs: where the kernel has no overlay for us they are refused."""


def way(name: str, *, other_programs: bool = False) -> Callable[[Way], Way]:
    def add(function: Way) -> Way:
        WAYS[name] = function
        if other_programs:
            NOT_IN_PYTHON.add(name)
        return function

    return add


def make_model() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


if __name__ == "__main__":  # not in processes that are started anew
    model = make_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())


def train() -> None:
    model(torch.randn(4, WIDTH, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def check_state(path: object, **options: object) -> None:
    """It loads, with all shapes, and can be put back into the model."""
    state = torch.load(path, **options)
    state = state.get("model", state)
    assert state["weight"].shape == (WIDTH, WIDTH) and state["bias"].shape == (WIDTH,)
    model.load_state_dict(state)


def check_size(path: str, expected: int = WEIGHTS_BYTES) -> None:
    assert expected <= os.path.getsize(path) < expected * 1.5 + 8192, os.path.getsize(path)


# -- torch.save -------------------------------------------------------------------------------------------------


@way("torch.save to a path")
def _() -> None:
    torch.save(model.state_dict(), "ckpt.pt")
    check_size("ckpt.pt")
    check_state("ckpt.pt")
    check_state("ckpt.pt", map_location="cpu", weights_only=True, mmap=True)


@way("torch.save to an open file")
def _() -> None:
    with open("ckpt.pt", "wb") as file:
        torch.save(model.state_dict(), file)
    check_size("ckpt.pt")
    with open("ckpt.pt", "rb") as file:
        check_state(file, map_location="cpu")


@way("torch.save to a buffer, which is written to a file")
def _() -> None:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    pathlib.Path("ckpt.pt").write_bytes(buffer.getvalue())
    check_size("ckpt.pt")
    check_state(io.BytesIO(pathlib.Path("ckpt.pt").read_bytes()))


@way("tmp + os.replace (fairseq)")
def _() -> None:
    torch.save({"model": model.state_dict()}, "ckpt.pt.tmp")
    os.replace("ckpt.pt.tmp", "ckpt.pt")
    assert not os.path.exists("ckpt.pt.tmp")
    check_state("ckpt.pt")


@way("tmp + os.rename, as pathlib")
def _() -> None:
    torch.save(model.state_dict(), pathlib.Path("ckpt.tmp"))
    pathlib.Path("ckpt.tmp").rename("ckpt.pt")
    check_state(pathlib.Path("ckpt.pt"))


@way("nanoGPT's ckpt.pt")
def _() -> None:
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": 3, "config": {"lr": 1}}
    torch.save(checkpoint, os.path.join("sub", "ckpt.pt"))
    back = torch.load(os.path.join("sub", "ckpt.pt"), map_location="cuda")
    assert back["iter_num"] == 3
    optimizer.load_state_dict(back["optimizer"])


@way("timm's CheckpointSaver: os.replace, hard links, old ones removed")
def _() -> None:
    torch.save({"model": model.state_dict()}, "tmp.pth")
    os.replace("tmp.pth", "last.ckpt")
    for epoch in range(3):
        name = f"checkpoint-{epoch}.pth"
        if os.path.exists(name):
            os.unlink(name)
        os.link("last.ckpt", name)
    os.remove("checkpoint-0.pth")
    assert sorted(glob.glob("checkpoint-*.pth")) == ["checkpoint-1.pth", "checkpoint-2.pth"]
    assert os.stat("last.ckpt").st_nlink == 3
    check_state("checkpoint-2.pth")


@way("detectron's last_checkpoint")
def _() -> None:
    torch.save({"model": model.state_dict()}, "model_0000002.pth")
    with open("last_checkpoint", "w") as file:
        file.write("model_0000002.pth")
    with open("last_checkpoint") as file:
        check_state(file.read().strip())


@way("ultralytics: strip_optimizer saves again in place")
def _() -> None:
    table = torch.arange(1 << 18)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1, "table": table}
    torch.save(state, "last.ckpt")
    large = os.path.getsize("last.ckpt")
    stripped = torch.load("last.ckpt", map_location="cpu", weights_only=False)
    stripped["optimizer"] = None
    torch.save(stripped, "last.ckpt")
    assert os.path.getsize("last.ckpt") < large
    assert int(torch.load("last.ckpt", weights_only=False)["table"][-1]) == (1 << 18) - 1
    shutil.copy("last.ckpt", "best.pt")
    check_state("best.pt")


@way("the old format of torch.save")
def _() -> None:
    torch.save(model.state_dict(), "ckpt.pt", _use_new_zipfile_serialization=False)
    check_size("ckpt.pt")
    check_state("ckpt.pt")


@way("torch.save of a whole module")
def _() -> None:
    torch.save(model, "ckpt.pt")
    again = torch.load("ckpt.pt", weights_only=False)
    assert isinstance(again, nn.Linear) and again.weight.is_cuda


@way("torch.save to gzip")
def _() -> None:
    with gzip.open("ckpt.pt", "wb") as file:
        torch.save(model.state_dict(), file)
    with gzip.open("ckpt.pt", "rb") as file:
        check_state(io.BytesIO(file.read()))


@way("torch.save to a temporary file that is moved")
def _() -> None:
    with tempfile.NamedTemporaryFile(dir=".", delete=False) as file:
        torch.save(model.state_dict(), file)
    shutil.move(file.name, "ckpt.pt")
    check_state("ckpt.pt")


@way("torch.save below a symbolic link, and a link to the latest")
def _() -> None:
    os.symlink("sub", "latest")
    torch.save(model.state_dict(), "latest/part.pt")
    check_state("sub/part.pt")
    os.remove("latest")
    os.symlink(os.path.abspath("sub"), "latest")
    assert os.readlink("latest") == os.path.abspath("sub")
    check_state("latest/part.pt")


@way("torch.save of real tensors")
def _() -> None:
    torch.save({"ids": torch.arange(5)}, "ckpt.pt")
    assert torch.load("ckpt.pt")["ids"].tolist() == [0, 1, 2, 3, 4]


@way("a name that is not ASCII")
def _() -> None:
    torch.save(model.state_dict(), "Modell größer.pt")
    check_state("Modell größer.pt")
    torch.save({"ids": torch.arange(5)}, "größer.pt")
    assert torch.load("größer.pt")["ids"].tolist() == [0, 1, 2, 3, 4]


@way("torch.jit.save")
def _() -> None:
    scripted = torch.jit.script(model)
    torch.jit.save(scripted, "ckpt.pt")
    check_size("ckpt.pt")
    os.rename("ckpt.pt", "scripted.pt")
    assert torch.jit.load("scripted.pt")(torch.randn(2, WIDTH, device="cuda")).shape == (2, WIDTH)


@way("torch.distributed.checkpoint")
def _() -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": model.state_dict()}, checkpoint_id="sub")
    assert ".metadata" in os.listdir("sub")
    check_size(glob.glob("sub/*.distcp")[0])
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id="sub")
    model.load_state_dict(state["model"])


# -- safetensors and the libraries around it --------------------------------------------------------------------


@way("safetensors save_file")
def _() -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    save_file(model.state_dict(), "model.safetensors", metadata={"format": "pt"})
    check_size("model.safetensors")
    model.load_state_dict(load_file("model.safetensors"))
    with safe_open("model.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt" and sorted(file.keys()) == ["bias", "weight"]


@way("safetensors through an open file")
def _() -> None:
    from safetensors.torch import load, load_file, save

    with open("model.safetensors", "wb") as file:
        file.write(save(model.state_dict()))
    check_size("model.safetensors")
    model.load_state_dict(load(pathlib.Path("model.safetensors").read_bytes()))
    model.load_state_dict(load_file("model.safetensors"))


@way("transformers save_pretrained, safe and pickled")
def _() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=100, n_positions=16)
    gpt = GPT2LMHeadModel(config).cuda()
    gpt.save_pretrained("sub")
    assert {"config.json", "model.safetensors"} <= set(os.listdir("sub"))
    assert GPT2LMHeadModel.from_pretrained("sub").num_parameters() == gpt.num_parameters()
    gpt.save_pretrained("other", safe_serialization=False)
    assert "config.json" in os.listdir("other")


@way("a tokenizer's save_pretrained")
def _() -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a")))
    tokenizer.save_pretrained("sub")
    assert "tokenizer.json" in os.listdir("sub")
    assert PreTrainedTokenizerFast.from_pretrained("sub").vocab_size == 2


@way("peft save_pretrained")
def _() -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=100, n_positions=16)
    tuned = get_peft_model(GPT2LMHeadModel(config), LoraConfig(target_modules=["c_attn"], r=4)).cuda()
    tuned.save_pretrained("sub")
    assert "adapter_model.safetensors" in os.listdir("sub")


@way("diffusers save_pretrained")
def _() -> None:
    from diffusers import UNet2DModel

    small = {"block_out_channels": (32, 32), "down_block_types": ("DownBlock2D",) * 2}
    unet = UNet2DModel(sample_size=8, layers_per_block=1, up_block_types=("UpBlock2D",) * 2, **small).cuda()
    unet.save_pretrained("sub")
    assert UNet2DModel.from_pretrained("sub").config.sample_size == 8


@way("accelerate save_state and load_state")
def _() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(project_dir=".")
    prepared, stepping = accelerator.prepare(make_model(), torch.optim.AdamW(model.parameters()))
    accelerator.save_state("sub")
    accelerator.load_state("sub")
    accelerator.save_model(prepared, "exported")
    assert "model.safetensors" in os.listdir("sub") and "model.safetensors" in os.listdir("exported")
    assert stepping is not None


@way("tensorboard")
def _() -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("sub") as writer:
        writer.add_scalar("loss", 1.0, 1)
    assert any("tfevents" in name for name in os.listdir("sub"))


# -- arrays and pickles -----------------------------------------------------------------------------------------


@way("numpy.save")
def _() -> None:
    np.save("a.npy", model.weight.detach().cpu().numpy())
    check_size("a.npy", WIDTH * WIDTH * 4)
    assert np.load("a.npy").shape == (WIDTH, WIDTH)


@way("numpy.savez, and tofile")
def _() -> None:
    array = model.weight.detach().cpu().numpy()
    np.savez("a.npz", weight=array)
    array.tofile("data.bin")
    assert np.load("a.npz")["weight"].shape == (WIDTH, WIDTH)
    assert np.fromfile("data.bin", dtype=np.float32).size == WIDTH * WIDTH


@way("numpy.memmap")
def _() -> None:
    written = np.memmap("data.bin", dtype=np.uint8, mode="r+", shape=(3,))
    written[:] = 7
    written.flush()
    assert np.memmap("data.bin", dtype=np.uint8, mode="r", shape=(3,)).tolist() == [7, 7, 7]


@way("pickle.dump")
def _() -> None:
    with open("ckpt.pt", "wb") as file:
        pickle.dump({"model": model.state_dict()}, file)
    with open("ckpt.pt", "rb") as file:
        assert pickle.load(file)["model"]["weight"].shape == (WIDTH, WIDTH)


@way("joblib.dump")
def _() -> None:
    joblib = __import__("joblib")
    joblib.dump(model.weight.detach().cpu().numpy(), "ckpt.pt")
    assert joblib.load("ckpt.pt").shape == (WIDTH, WIDTH)


@way("h5py")
def _() -> None:
    h5py = __import__("h5py")
    with h5py.File("data.h5", "w") as file:
        file["weight"] = model.weight.detach().cpu().numpy()
    with h5py.File("data.h5", "r") as file:
        assert file["weight"].shape == (WIDTH, WIDTH)


# -- Python's own -----------------------------------------------------------------------------------------------


@way("text, csv and json logs")
def _() -> None:
    with open("log.csv", "a", newline="") as file:
        csv.writer(file).writerow([1, 0.5])
    with open("log.csv") as file:
        assert file.read() == "old log.csv\n1,0.5\n"
    with open("trainer_state.json", "w") as file:
        json.dump({"step": 3}, file)
    assert json.loads(pathlib.Path("trainer_state.json").read_text()) == {"step": 3}


@way("a log handler")
def _() -> None:
    handler = logging.FileHandler("log.csv", mode="w")
    handler.emit(logging.LogRecord("a", 20, "", 0, "written", None, None))
    handler.close()
    assert pathlib.Path("log.csv").read_text() == "written\n"


@way("sqlite")
def _() -> None:
    with contextlib.closing(sqlite3.connect("runs.db")) as connection:
        connection.execute("create table steps (loss)")
        connection.execute("insert into steps values (1)")
        connection.commit()
    with contextlib.closing(sqlite3.connect("runs.db")) as connection:
        assert connection.execute("select loss from steps").fetchall() == [(1,)]
    assert os.path.getsize("runs.db") > 0


@way("os.open, os.write, os.truncate")
def _() -> None:
    number = os.open("data.bin", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(number, b"weights")
    os.close(number)
    os.truncate("data.bin", 3)
    assert pathlib.Path("data.bin").read_bytes() == b"wei"


@way("r+ and seek")
def _() -> None:
    with open("data.bin", "r+b") as file:
        file.seek(4)
        file.write(b"DATA")
    assert pathlib.Path("data.bin").read_bytes() == b"old DATA.bin\n"


@way("mmap")
def _() -> None:
    with open("data.bin", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:3] = b"new"
    assert pathlib.Path("data.bin").read_bytes() == b"new data.bin\n"


@way("io.FileIO")
def _() -> None:
    with io.FileIO("data.bin", "w") as file:
        file.write(b"raw")
    assert os.path.getsize("data.bin") == 3


@way("pathlib")
def _() -> None:
    path = pathlib.Path("data.bin")
    path.write_bytes(b"x" * 10)
    path.with_name("empty").touch()
    assert path.stat().st_size == 10 and pathlib.Path("empty").exists()
    path.unlink()
    assert not path.exists() and "data.bin" not in [entry.name for entry in pathlib.Path().iterdir()]


@way("zipfile")
def _() -> None:
    with zipfile.ZipFile("all.zip", "w") as archive:
        archive.write("data.bin")
        archive.writestr("more", "x")
    assert zipfile.ZipFile("all.zip").namelist() == ["data.bin", "more"]


@way("os.remove and os.unlink")
def _() -> None:
    os.remove("ckpt.pt")
    os.unlink("last.ckpt")
    assert not os.path.exists("ckpt.pt") and not os.path.lexists("last.ckpt")
    assert "ckpt.pt" not in os.listdir(".")
    try:
        open("ckpt.pt").close()
    except FileNotFoundError as error:
        assert error.filename == "ckpt.pt"
    else:
        raise AssertionError("a deleted file was opened")


@way("shutil.rmtree, and the folder again")
def _() -> None:
    shutil.rmtree("sub")
    assert not os.path.exists("sub")
    os.makedirs("sub")
    assert os.listdir("sub") == [] and not os.path.exists("sub/part.pt")
    pathlib.Path("sub/new").write_text("x")
    assert [name for _, _, names in os.walk("sub") for name in names] == ["new"]


@way("shutil.copytree and move of a folder")
def _() -> None:
    shutil.copytree("sub", "copy")
    shutil.move("sub", "moved")
    assert pathlib.Path("moved/part.pt").read_text() == pathlib.Path("copy/part.pt").read_text() == "old sub/part.pt\n"
    assert not os.path.exists("sub")


@way("os.rename of a folder that was there")
def _() -> None:
    os.rename("sub", "archived")
    os.mkdir("sub")
    assert os.listdir("sub") == [] and os.listdir("archived") == ["part.pt"]
    pathlib.Path("archived/part.pt").write_text("changed")
    os.rename("archived", "again")
    assert pathlib.Path("again/part.pt").read_text() == "changed" and not os.path.exists("archived")


@way("os.chmod, os.utime")
def _() -> None:
    os.chmod("data.bin", 0o600)
    os.utime("ckpt.pt", (1, 1))
    assert os.stat("data.bin").st_mode & 0o777 == 0o600 and os.path.getmtime("ckpt.pt") == 1


@way("another working folder")
def _() -> None:
    os.makedirs("run/deep")
    os.chdir("run/deep")
    torch.save(model.state_dict(), "ckpt.pt")
    assert os.getcwd().endswith("run/deep") and os.listdir(".") == ["ckpt.pt"]
    assert os.path.exists("../deep/ckpt.pt") and os.path.abspath("ckpt.pt").endswith("run/deep/ckpt.pt")
    check_state(os.path.abspath("ckpt.pt"))
    os.chdir("../..")
    check_state("run/deep/ckpt.pt")


@way("a file with a descriptor of its folder")
def _() -> None:
    folder = os.open("sub", os.O_RDONLY)
    number = os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=folder)
    os.write(number, b"x")
    os.close(number)
    os.unlink("part.pt", dir_fd=folder)
    os.close(folder)
    assert os.listdir("sub") == ["new"]


@way("a forked process")
def _() -> None:
    process = multiprocessing.get_context("fork").Process(target=write_in_child, args=("data.bin",))
    process.start()
    process.join()
    assert process.exitcode == 0 and pathlib.Path("data.bin").read_text() == "child"
    assert not os.path.exists("ckpt.pt")


@way("a process that is started anew")
def _() -> None:
    process = multiprocessing.get_context("spawn").Process(target=os.remove, args=(os.path.abspath("ckpt.pt"),))
    process.start()
    process.join()
    assert process.exitcode == 0 and not os.path.exists("ckpt.pt")


@way("workers of a DataLoader")
def _() -> None:
    loader = torch.utils.data.DataLoader(Writing(), batch_size=None, num_workers=2)
    assert sorted(int(item) for item in loader) == [0, 1, 2, 3]
    assert sorted(glob.glob("item-*")) == ["item-0", "item-1", "item-2", "item-3"]


@way("cp, mv and rm", other_programs=True)
def _() -> None:
    subprocess.run(["cp", "data.bin", "copied"], check=True)
    subprocess.run("mv ckpt.pt moved.pt && rm -r sub && echo x >> log.csv", shell=True, check=True)
    assert pathlib.Path("copied").read_text() == "old data.bin\n"
    assert not os.path.exists("ckpt.pt") and os.path.exists("moved.pt") and not os.path.exists("sub")


@way("another Python", other_programs=True)
def _() -> None:
    subprocess.run([sys.executable, "-c", "import shutil; shutil.rmtree('sub'); open('data.bin', 'w')"], check=True)
    assert not os.path.exists("sub") and os.path.getsize("data.bin") == 0


def write_in_child(path: str) -> None:
    pathlib.Path(path).write_text("child")
    os.remove("ckpt.pt")


class Writing(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        pathlib.Path(f"item-{index}").write_text("x")
        return index


def run_all(top: str, chosen: list[str], with_programs: bool) -> None:
    done, absent, failed = [], [], []
    for number, (name, function) in enumerate(WAYS.items()):
        if (chosen and name not in chosen) or (name in NOT_IN_PYTHON and not with_programs):
            continue
        folder = os.path.join(top, str(number))
        os.chdir(folder)
        before = set(os.listdir("."))
        try:
            function()
        except ImportError as error:
            absent.append(f"{name}: {error}")
        except Exception as error:
            import traceback

            traceback.print_exc()
            failed.append(f"{name}: {type(error).__name__}: {error}")
        else:
            done.append(name)
            assert before, "the folder was not prepared"
        os.chdir(top)
    print(json.dumps({"done": done, "absent": absent, "failed": failed}), file=sys.__stderr__)


if __name__ == "__main__":
    train()
    run_all(os.path.abspath(sys.argv[1]), sys.argv[3:], sys.argv[2] == "programs")
    for _step in range(3):
        train()
