"""Commands as they are typed, and what they start."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from vramcast.errors import CannotPredict, UsageError
from vramcast.launchers import Launch, assignments, read_command, strip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(command: str, **environment: str) -> Launch:
    return read_command(shlex.split(command), {"HF_HOME": "nowhere", **environment})


@pytest.mark.parametrize(
    ("command", "target", "is_module", "arguments"),
    [
        ("train.py --lr 1", "train.py", False, ["--lr", "1"]),
        ("python train.py --lr 1", "train.py", False, ["--lr", "1"]),
        ("python3.11 -u -W ignore -X faulthandler train.py -m x", "train.py", False, ["-m", "x"]),
        ("/usr/bin/python3 -Bu train.py", "train.py", False, []),
        ("python -m pkg.train --lr 1", "pkg.train", True, ["--lr", "1"]),
        ("python -mpkg.train", "pkg.train", True, []),
        ("torchrun --nproc-per-node 1 train.py --nproc-per-node 4", "train.py", False, ["--nproc-per-node", "4"]),
        ("torchrun --standalone --nproc_per_node=gpu -m pkg.train a", "pkg.train", True, ["a"]),
        ("torchrun --nproc 1 train.py", "train.py", False, []),
        ("python -m torch.distributed.run --rdzv-backend c10d train.py", "train.py", False, []),
        ("python -m torch.distributed.launch train.py --x", "train.py", False, ["--local-rank=0", "--x"]),
        ("python -m torch.distributed.launch --use_env train.py", "train.py", False, []),
        ("accelerate launch train.py --lr 1", "train.py", False, ["--lr", "1"]),
        ("accelerate launch --num_processes=1 -m pkg.train", "pkg.train", True, []),
        ("accelerate-launch --num-processes 1 train.py", "train.py", False, []),
        ("python -m accelerate.commands.launch --module pkg", "pkg", True, []),
        ("deepspeed train.py --deepspeed ds.json", "train.py", False, ["--local_rank=0", "--deepspeed", "ds.json"]),
        ("deepspeed --num_gpus 1 --no_local_rank train.py", "train.py", False, []),
        ("fabric run --accelerator cuda train.py --lr 1", "train.py", False, ["--lr", "1"]),
        ("lightning run model train.py --devices=1 --lr 1", "train.py", False, ["--lr", "1"]),
        ("uv run --with torch --extra cu train.py --lr 1", "train.py", False, ["--lr", "1"]),
        ("uv run -m pkg.train --lr 1", "pkg.train", True, ["--lr", "1"]),
        ("uv run torchrun --nproc-per-node 1 train.py", "train.py", False, []),
        ("poetry run python train.py", "train.py", False, []),
        ("conda run -n env --no-capture-output python train.py", "train.py", False, []),
        ("CUDA_VISIBLE_DEVICES=0 nohup time python train.py", "train.py", False, []),
        ("env -u X A=B timeout 1h nice -n 5 python train.py", "train.py", False, []),
        ("torchrun --no-python python -u train.py a", "train.py", False, ["a"]),
    ],
)
def test_what_a_command_starts(command: str, target: str, is_module: bool, arguments: list[str]) -> None:
    launch = read(command)
    assert (launch.target, launch.is_module, launch.arguments_of()) == (target, is_module, arguments)
    assert launch.world_size == 1


def test_the_environment_of_torchs_workers() -> None:
    launch = read("A=1 torchrun --nproc-per-node 4 --nnodes 2 --master-port 1234 --role x train.py")
    assert (launch.processes, launch.nodes, launch.world_size) == (4, 2, 8)
    assert launch.environment_of(6) == {
        "A": "1", "RANK": "6", "LOCAL_RANK": "2", "GROUP_RANK": "1", "ROLE_RANK": "6", "ROLE_NAME": "x",
        "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2", "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234", "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    assert "OMP_NUM_THREADS" not in read("torchrun train.py").environment_of()
    assert read("torchrun train.py", PET_NPROC_PER_NODE="2").processes == 2


def test_each_rank_of_the_old_launcher_is_told_its_number() -> None:
    launch = read("python -m torch.distributed.launch --nproc_per_node 2 train.py a")
    assert [launch.arguments_of(rank) for rank in (0, 1)] == [["--local-rank=0", "a"], ["--local-rank=1", "a"]]


def test_deepspeed(here: Path) -> None:
    launch = read("deepspeed --master_port 7 train.py")
    assert launch.environment_of() == {
        "CUDA_VISIBLE_DEVICES": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "7", "WORLD_SIZE": "1",
        "CROSS_SIZE": "1", "LOCAL_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "CROSS_RANK": "0",
    }  # fmt: skip
    assert read("deepspeed --include localhost:1,3 train.py").environment_of()["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert read("deepspeed train.py", CUDA_VISIBLE_DEVICES="0,1").processes == 2
    assert read("CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 1 train.py").processes == 1
    (here / "hosts").write_text("# two\nworker-0 slots=4\nworker-1 slots=4\n")
    two = read("deepspeed --hostfile hosts train.py")
    assert (two.processes, two.nodes) == (4, 2)
    assert read("deepspeed --hostfile hosts --exclude worker-1 train.py").world_size == 4
    assert read("deepspeed --hostfile hosts --num_nodes 1 train.py").world_size == 4
    with pytest.raises(UsageError, match="--num_nodes 3, and the host file names 2"):
        read("deepspeed --hostfile hosts --num_nodes 3 train.py")


def test_fabric_passes_its_options_on_as_variables() -> None:
    launch = read("fabric run --strategy ddp --devices 2 --precision bf16-mixed train.py --devices-of-mine 3")
    said = launch.environment_of(1)
    assert {name: value for name, value in said.items() if name.startswith("LT_")} == {
        "LT_CLI_USED": "1", "LT_DEVICES": "2", "LT_NUM_NODES": "1", "LT_STRATEGY": "ddp", "LT_PRECISION": "bf16-mixed",
    }  # fmt: skip
    assert (said["RANK"], said["WORLD_SIZE"], said["MASTER_PORT"]) == ("1", "2", "29400")
    assert launch.arguments_of() == ["--devices-of-mine", "3"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "torchrun --nprocs-per-node 2 train.py",
            "torchrun has no option --nprocs-per-node; is --nproc_per_node meant?",
        ),
        ("accelerate launch --num_proc 2 train.py", "accelerate launch has no option --num_proc; is --num_processes"),
        ("deepspeed --gpus 2 train.py", "deepspeed has no option --gpus"),
        ("fabric run --gpus 2 train.py", "fabric run has no option --gpus"),
        ("uv run --wth x train.py", "uv run has no option --wth"),
        ("python -Z train.py", "python has no option -Z"),
        ("torchrun --nproc-per-node many train.py", "--nproc-per-node needs a whole number from 1 on, not 'many'"),
        ("torchrun --nproc-per-node", "torchrun: --nproc-per-node needs a value"),
        ("torchrun", "torchrun: name the script"),
        ("accelerate launch --config_file none.yaml train.py", "there is no file none.yaml"),
        ("python -c 'import x'", "put the code into a file"),
        ("python", "name the script"),
        ("ls train.py", "ls is a program, and vramcast runs Python"),
        ("trian", "no such script: trian"),
        ("nohup", "name what is to be run"),
        ("uv run --directory x train.py", "go there first"),
    ],
)
def test_commands_that_cannot_be_followed(command: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(command)
    assert message in str(caught.value)


def test_a_command_of_a_package_is_a_script(here: Path) -> None:
    program = here / "trainer"
    program.write_text("#!/usr/bin/env python3\n")
    program.chmod(0o755)
    launch = read(f"{program} fit --lr 1")
    assert (launch.target, launch.arguments_of()) == (str(program), ["fit", "--lr", "1"])


def test_prefixes_are_taken_off() -> None:
    stripped = strip(shlex.split("A=1 env B=2 nohup stdbuf -oL python x"))
    assert (stripped.environment, stripped.words) == ({"A": "1", "B": "2"}, ["python", "x"])
    assert strip(["uv", "pip", "install"]).words == ["uv", "pip", "install"]
    assert assignments(["export", "A=b=c", "python"]) == ({"A": "b=c"}, ["python"])
    assert read("env -u A python train.py", A="1").removed == ("A",)
    assert "uv run was not started" in read("uv run train.py").notes[0]


# -- accelerate -------------------------------------------------------------------------------------------------

CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: {kind}
mixed_precision: fp16
num_machines: 1
num_processes: {processes}
machine_rank: 0
gpu_ids: all
use_cpu: false
debug: false
"""
FSDP = (
    CONFIG
    + """
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: Block
  fsdp_reshard_after_forward: false
  fsdp_offload_params: true
  activation_checkpointing: true
"""
)
COMMANDS = [
    "accelerate launch train.py",
    "accelerate launch --mixed_precision bf16 train.py",
    "accelerate launch --num_processes 2 --main_process_port 1234 train.py",
    "accelerate launch --multi_gpu --num_processes 4 --gpu_ids 0,1,2,3 train.py",
    "accelerate launch --dynamo_backend inductor --dynamo_use_fullgraph --num_cpu_threads_per_process 3 train.py",
    "accelerate launch --use_fsdp --fsdp_offload_params TRUE --fsdp_auto_wrap_policy SIZE_BASED_WRAP train.py",
    "accelerate launch --debug --enable_cpu_affinity --num_processes 1 -m pkg.train",
    "accelerate launch --config_file no.yaml train.py",
    "accelerate launch --config_file multi.yaml --mixed_precision no train.py",
    "accelerate launch --config_file fsdp.yaml train.py",
    "accelerate launch --config_file fsdp.yaml --fsdp_offload_params false --num_processes 3 train.py",
    "accelerate launch --config_file compiled.yaml train.py",
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("default_config", [False, True])
def test_accelerate_launch_sets_what_accelerate_sets(
    command: str, default_config: bool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the functions of the installed accelerate that make the environment of its processes."""
    launcher = pytest.importorskip("accelerate.commands.launch")
    from accelerate.commands.config import config_args

    (here / "no.yaml").write_text(CONFIG.format(kind="'NO'", processes=1))
    (here / "multi.yaml").write_text(CONFIG.format(kind="MULTI_GPU", processes=2))
    (here / "fsdp.yaml").write_text(FSDP.format(kind="FSDP", processes=1))
    (here / "compiled.yaml").write_text(
        CONFIG.format(kind="'NO'", processes=1) + "dynamo_config:\n  dynamo_backend: INDUCTOR\n  dynamo_mode: default\n"
    )
    default = here / "home" / "accelerate" / "default_config.yaml"
    if default_config:
        default.parent.mkdir(parents=True)
        default.write_text(CONFIG.format(kind="'NO'", processes=1).replace("fp16", "bf16"))
    for module in (launcher, config_args):
        monkeypatch.setattr(module, "default_config_file", str(default))
    monkeypatch.setattr(launcher.torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(launcher, "is_bf16_available", lambda *args: True)
    monkeypatch.setattr("accelerate.utils.launch.is_port_in_use", lambda port: False)
    for name in ("RANK", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    words = shlex.split(command)[2:]
    args, _, _ = launcher._validate_launch_command(launcher.launch_command_parser().parse_args(words))
    is_multi = args.use_fsdp or args.multi_gpu
    if is_multi:
        theirs = launcher.prepare_multi_gpu_env(args)
    else:
        _, theirs = launcher.prepare_simple_launcher_cmd_env(args)
    import os

    changed = {name: value for name, value in theirs.items() if os.environ.get(name) != value}

    launch = read_command(shlex.split(command), {"HF_HOME": str(here / "home")})
    of_ranks = set(read("torchrun train.py").environment_of()) if is_multi else set()
    ours = {name: value for name, value in launch.environment_of().items() if name not in of_ranks}
    assert ours == {name: str(value) for name, value in changed.items()}
    assert launch.world_size == args.num_processes
    assert ("RANK" in launch.environment_of()) == bool(is_multi)


def test_accelerate_with_deepspeed(here: Path) -> None:
    (here / "ds.yaml").write_text(
        CONFIG.format(kind="DEEPSPEED", processes=2)
        + "deepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: CPU\n  zero3_init_flag: true\n"
    )
    launch = read("accelerate launch --config_file ds.yaml train.py")
    said = launch.environment_of(1)
    assert launch.world_size == 2 and launch.launcher == "accelerate launch (with ds.yaml)"
    assert said["ACCELERATE_USE_DEEPSPEED"] == said["ACCELERATE_DEEPSPEED_ZERO3_INIT"] == "true"
    assert (said["ACCELERATE_DEEPSPEED_ZERO_STAGE"], said["RANK"]) == ("3", "1")
    assert said["ACCELERATE_CONFIG_DS_FIELDS"] == "zero_stage,offload_optimizer_device,zero3_init_flag,mixed_precision"
    assert said["ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"] == "cpu"
    assert said["PYTHONPATH"] == str(here)


def test_configs_that_accelerate_would_not_take(here: Path) -> None:
    (here / "bad.yaml").write_text("num_processes: 2\n")
    with pytest.raises(UsageError, match=r"bad\.yaml is no accelerate config"):
        read("accelerate launch --config_file bad.yaml train.py")
    (here / "bad.yaml").write_text("distributed_type: [\n")
    with pytest.raises(UsageError, match="cannot be read"):
        read("accelerate launch --config_file bad.yaml train.py")
    (here / "tpu.yaml").write_text(CONFIG.format(kind="XLA", processes=8))
    with pytest.raises(CannotPredict, match="a TPU is not modelled"):
        read("accelerate launch --config_file tpu.yaml train.py")
    with pytest.raises(UsageError, match="no card is used"):
        read("accelerate launch --cpu train.py")


def test_every_option_of_the_installed_launchers_is_known() -> None:
    from torch.distributed import run

    from vramcast.launchers.accelerate import ACCELERATE
    from vramcast.launchers.torchrun import TORCHRUN

    tables = [(run.get_args_parser(), TORCHRUN)]
    accelerate = pytest.importorskip("accelerate.commands.launch")
    tables.append((accelerate.launch_command_parser(), ACCELERATE))
    for parser, table in tables:
        for action in parser._actions:
            for spelt in action.option_strings:
                if spelt not in ("-h", "--help"):
                    assert table.has(spelt), f"{table.command} {spelt}"
                    flag = spelt.lstrip("-").replace("-", "_") in table.flags
                    assert len(spelt) == 2 or flag == (action.nargs == 0), f"{table.command} {spelt}"
