"""SimuMax's records on eight B200: Megatron-LM at the commit its guide names, with the arguments of its launchers."""

from __future__ import annotations

import re

from lab.published import checkouts
from lab.published.golden import ENGINE, MEGATRON, SCRIPT
from lab.published.recipe import NoRecipe, Recipe

MEGATRON_COMMIT, ENGINE_VERSION = "23e00ed0963c35382dfe8a5a94fb3cda4d21e133", "v2.11"
CARDS = 8
MICROBATCHES = 4
"""As many as are run. A step of more takes as much memory, since no stage of these layouts keeps more than two at once,
and each further one takes as long as the second."""
COMMON = """
--attention-dropout 0.0 --hidden-dropout 0.0 --disable-bias-linear --position-embedding-type rope
--no-position-embedding --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights --seed 42
--use-mcore-models --no-bias-dropout-fusion --use-distributed-optimizer --use-flash-attn --sequence-parallel
--recompute-granularity full --recompute-method block --recompute-num-layers 0 --distributed-backend nccl --mock-data
--weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0 --initial-loss-scale 65536 --min-loss-scale 1.0
--train-iters 10 --lr-warmup-iters 5 --lr 2.4e-4 --lr-decay-style cosine --min-lr 1e-6 --bf16
--attention-softmax-in-fp32 --no-masked-softmax-fusion --accumulate-allreduce-grads-in-fp32
--tokenizer-type NullTokenizer --split 1 --no-create-attention-mask-in-dataloader --log-interval 1 --log-throughput
--save-interval 200000 --eval-interval 1000 --eval-iters 0 --transformer-impl transformer_engine
--cross-entropy-loss-fusion --cross-entropy-fusion-impl te
"""
LLAMA = {
    "llama3-70b": "--hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --num-query-groups 8 "
    "--vocab-size 128256",
    "llama3-405b": "--hidden-size 16384 --ffn-hidden-size 53248 --num-attention-heads 128 --num-query-groups 16 "
    "--vocab-size 128256",
}
DEEPSEEK = {
    "deepseekv2": "--hidden-size 5120 --ffn-hidden-size 12288 --vocab-size 102400 --num-experts 160 "
    "--moe-router-topk 6 --moe-ffn-hidden-size 1536 --moe-shared-expert-intermediate-size 3072",
    "deepseekv3": "--hidden-size 7168 --ffn-hidden-size 18432 --vocab-size 129280 --num-experts 256 "
    "--moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048",
}
EXPERTS = """
--num-attention-heads 128 --norm-epsilon 1e-6 --init-method-std 0.006 --moe-token-dispatcher-type alltoall
--moe-router-score-function softmax --moe-router-group-topk 3 --moe-router-load-balancing-type seq_aux_loss
--moe-router-pre-softmax --moe-router-topk-scaling-factor 16 --moe-aux-loss-coeff 3e-3 --moe-expert-capacity-factor 1
--moe-grouped-gemm --moe-permute-fusion --moe-pad-expert-input-to-capacity --multi-latent-attention
--enable-experimental --qk-layernorm --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128
--qk-pos-emb-head-dim 64 --v-head-dim 128 --rotary-scaling-factor 1
"""


def recipe(row: dict[str, str]) -> Recipe:
    source = checkouts.checkout(MEGATRON, MEGATRON_COMMIT)
    engine = checkouts.checkout(ENGINE, ENGINE_VERSION)
    tp, pp, cp = (int(row[name] or 1) for name in ("tp", "pp", "cp"))
    return Recipe(
        program=str(SCRIPT),
        arguments=[str(source), str(engine), "2.11.0", "pretrain_gpt.py", *_model(row), *_layout(row, tp, pp, cp)],
        gpu="b200",
        cards=CARDS,
        cards_per_node=CARDS,
        ranks=tuple(stage * (CARDS // pp) + CARDS // pp - 1 for stage in range(pp)),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        steps=2,
        further_passes=_microbatches(row) - min(_microbatches(row), MICROBATCHES),
    )


def _microbatches(row: dict[str, str]) -> int:
    stated = re.search(r"micro_batches=(\d+)", row["notes"])
    if stated is None:
        raise NoRecipe("microbatches not stated")
    return int(stated.group(1))


def _model(row: dict[str, str]) -> list[str]:
    layers = re.search(r"layers=(\d+)", row["notes"])
    if layers is None:
        raise NoRecipe("layers not stated")
    words = ["--num-layers", layers.group(1), "--seq-length", row["seq"], "--max-position-embeddings", row["seq"]]
    if row["model"] in LLAMA:
        words += LLAMA[row["model"]].split()
        words += ["--group-query-attention", "--norm-epsilon", "1e-5", "--init-method-std", "0.008"]
    elif row["model"] in DEEPSEEK:
        dense = int(layers.group(1)) - 1
        words += [*DEEPSEEK[row["model"]].split(), *EXPERTS.split(), "--moe-layer-freq", f"([0]*1+[1]*{dense})*1"]
        words += ["--expert-model-parallel-size", row["ep"], "--moe-router-num-groups", row["ep"]]
    else:
        raise NoRecipe(f"arguments of {row['model']} not written down")
    return [*words, *COMMON.split()]


def _layout(row: dict[str, str], tp: int, pp: int, cp: int) -> list[str]:
    microbatches = _microbatches(row)
    batch = int(row["global_batch"]) * min(microbatches, MICROBATCHES) // microbatches
    words = ["--micro-batch-size", row["micro_batch"], "--global-batch-size", str(batch)]
    words += ["--tensor-model-parallel-size", str(tp), "--pipeline-model-parallel-size", str(pp)]
    if cp > 1:
        words += ["--context-parallel-size", str(cp), "--cp-comm-type", "a2a"]
    virtual = re.search(r"vp[= ]?(\d)", row["notes"])
    if virtual:
        raise NoRecipe("virtual stages of SimuMax not written down")
    return words
