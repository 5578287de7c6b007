"""Golden values of Megatron-LM's CI: its own program, at the commit that recorded the figure, with its own settings."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from lab.published import checkouts
from lab.published.recipe import NoRecipe, Recipe

MEGATRON, ENGINE = "NVIDIA/Megatron-LM", "NVIDIA/TransformerEngine"
OPTIMIZERS = "NVIDIA-NeMo/Emerging-Optimizers"
"""Muon's package."""
SCRIPT = Path(__file__).with_name("megatron_script.py")
CARDS = {"A100": ("a100-80gb", 8), "H100": ("h100", 8), "GB200": ("b200", 4)}
"""Each platform's card, and how many a node of its CI has (`tests/test_utils/recipes`)."""
PROGRAMS = {
    "bert": ("pretrain_bert.py", "examples/bert/pretrain_bert.py"),
    "t5": ("pretrain_t5.py", "examples/t5/pretrain_t5.py"),
    "hybrid": ("pretrain_mamba.py", "pretrain_hybrid.py"),
    "nemotron": ("pretrain_mamba.py", "pretrain_hybrid.py"),
}
"""Where each family's program lies, at one commit or another; the others are in `pretrain_gpt.py`."""
VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
    "Llama2Tokenizer": 32000,
    "GPTSentencePieceTokenizer": 256000,
    "NullTokenizer": 0,
}
"""Size of each tokenizer's public vocabulary: GPT-2, BERT uncased and cased, Llama 2, Nemotron's 256k."""
USUAL_TOKENIZER = {"bert": "BertWordPieceLowerCase", "t5": "BertWordPieceCase"}
FILES = {
    *("--tensorboard-dir", "--save", "--load", "--data-path", "--vocab-file", "--merge-file", "--data-cache-path"),
    *("--async-save", "--use-persistent-ckpt-worker", "--ckpt-assume-constant-structure", "--tokenizer-type"),
    *(
        "--tokenizer-model",
        "--vocab-size",
        "--wandb-project",
        "--wandb-exp-name",
        "--wandb-save-dir",
        "--mock-data",
        "--num-workers",
    ),
    *("--load-main-params-from-ckpt", "--per-split-data-args-path", "--pretrained-checkpoint", "--config-logger-dir"),
    *("--auto-detect-ckpt-format", "--data-args-path", "--tiktoken-pattern"),
    *("--use-checkpoint-args", "--use-checkpoint-opt_param-scheduler"),
}
"""Options about files, which are not here."""
OVERLAP = "--tp-comm-overlap"
"""Needs TransformerEngine's own communicators. Their buffers are not PyTorch's, so the figures do not hold them."""
ONE_WORD = {"--step-batch-size-schedule"}
NO_FILES = ("--data-path", "none", "--num-workers", "0", "--tokenizer-type", "NullTokenizer")
STEPS = 2
"""The recorded peaks are the same from the second step on."""
RELEASE_CARDS = 64
"""Release tests do not state how many cards they ran on."""
RELEASE_WORLDS = {
    ("gpt/gpt3_15b_8t_release", "H100"): 128,
    ("gpt/gpt3_15b_8t_release_sm", "H100"): 128,
    ("gpt/gpt3_15b_8t_release_sm", "A100"): 256,
}
"""Told by another figure of the same files, what is allocated after a step: 6 bytes for each of the rank's 1.953
billion parameters, and 12 divided by the data-parallel ranks. 13.27 GB on H100 are 16 of them, 12.70 GB on A100 32."""
COPIED = {("gpt/gpt3_15b_8t_release_sm_gb200", "A100"): ("gpt/gpt3_15b_8t_release_sm", "f57304256e")}
"""Files that are a copy, byte for byte, of another test's: that test, and the commit that recorded the figure there."""


def recipe(row: dict[str, str]) -> Recipe:
    test, commit = COPIED.get((row["model"], row["gpu"]), (row["model"], row["recorded_commit"]))
    text = checkouts.read(MEGATRON, commit, f"tests/functional_tests/test_cases/{test}/model_config.yaml")
    settings = yaml.safe_load(text)
    if any(key.startswith("--export-kd") for key in settings["MODEL_ARGS"]):
        raise NoRecipe("distilled by ModelOpt from the checkpoint of a teacher, which is not published")
    gpu, per_node = CARDS[row["gpu"]]
    cards, assumed = _world(row, test, settings["MODEL_ARGS"])
    family = test.split("/")[0]
    arguments = _arguments(settings["MODEL_ARGS"], family)
    source = checkouts.checkout(MEGATRON, commit)
    engine = checkouts.checkout(ENGINE, _pinned(commit, "TransformerEngine"))
    version = (engine / "build_tools" / "VERSION.txt").read_text().strip()
    program = next(each for each in PROGRAMS.get(family, ("pretrain_gpt.py",)) if (source / each).exists())
    return Recipe(
        program=str(SCRIPT),
        arguments=[str(source), str(engine), version, program, *arguments],
        gpu=gpu,
        cards=cards,
        cards_per_node=per_node,
        ranks=(cards - _behind(family, settings["MODEL_ARGS"]),),
        environment={name: str(value) for name, value in (settings.get("ENV_VARS") or {}).items()},
        steps=STEPS,
        assumed=assumed,
        python_path=_packages(commit, settings["MODEL_ARGS"]),
    )


def _packages(commit: str, settings: dict[str, object]) -> tuple[str, ...]:
    if "muon" not in str(settings.get("--optimizer", "")):
        return ()
    return (str(checkouts.checkout(OPTIMIZERS, _pinned(commit, "Emerging-Optimizers"))),)


def _behind(family: str, settings: dict[str, object]) -> int:
    """The last rank's place from the end. BERT's and T5's programs send the sizes of a batch to the other ranks of a
    tensor-parallel group, so there the first rank of the last group is run: it holds as much."""
    return int(str(settings.get("--tensor-model-parallel-size", 1))) if family in ("bert", "t5") else 1


def _fewest_cards(settings: dict[str, object]) -> int:
    def size(name: str, otherwise: int = 1) -> int:
        return int(str(settings.get(f"--{name}-parallel-size", otherwise)))

    tensor, stages = size("tensor-model"), size("pipeline-model")
    experts = size("expert-model") * size("expert-tensor", tensor)
    return stages * max(tensor * size("context"), experts)


def _world(row: dict[str, str], test: str, settings: dict[str, object]) -> tuple[int, str]:
    if row["n_gpus"]:
        return int(row["n_gpus"]), ""
    if "release" in test:
        cards = RELEASE_WORLDS.get((test, row["gpu"]), max(RELEASE_CARDS, _fewest_cards(settings)))
        return cards, f"{cards} cards"
    return 8, ""


def _pinned(commit: str, package: str) -> str:
    """The revision of a package that Megatron-LM's own project file pins."""
    project = checkouts.read(MEGATRON, commit, "pyproject.toml")
    found = re.search(rf'{package}\.git",\s*rev = "([^"]+)"', project)
    if found is None:
        raise NoRecipe(f"the commit pins no revision of {package}")
    return found.group(1)


def _arguments(settings: dict[str, object], family: str) -> list[str]:
    words = []
    for name, value in settings.items():
        if name in FILES or name == OVERLAP or value is False:
            continue
        if value is True or value == "true":
            words.append(name)
        else:
            words += [name, *([str(value)] if name in ONE_WORD else str(value).replace("\\", "").strip("[]").split())]
    tokenizer = str(settings.get("--tokenizer-type", USUAL_TOKENIZER.get(family, "GPT2BPETokenizer")))
    size = VOCABULARIES.get(tokenizer)
    if size is None:
        raise NoRecipe(f"size of the vocabulary of {tokenizer} not known")
    size = size or int(str(settings.get("--vocab-size", 0)))
    extra = int(str(settings.get("--vocab-extra-ids", 0)))
    return [*words, *NO_FILES, "--vocab-size", str(size + extra)]
