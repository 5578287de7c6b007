"""What cards of one compute capability have in common."""

from __future__ import annotations

from vramcast.gpus import find_gpu
from vramcast.gpus.architectures import architecture
from vramcast.gpus.detect import chosen_gpu


def test_limits_of_known_architectures() -> None:
    assert [find_gpu(name).architecture.threads_per_sm for name in ("h200", "rtx-4090", "t4")] == [2048, 1536, 1024]
    rates = [find_gpu(name).architecture.host_bytes_per_second for name in ("h200", "rtx-4090", "t4")]
    assert rates == [64e9, 32e9, 16e9]


def test_one_that_is_not_listed_is_like_the_newest_before_it() -> None:
    assert architecture((12, 1)) == architecture((12, 0))
    assert architecture((5, 2)) == architecture((6, 0))


def test_a_card_that_was_named_needs_no_remark() -> None:
    assert chosen_gpu("h200") == (find_gpu("h200"), None)
    assert chosen_gpu(find_gpu("t4")) == (find_gpu("t4"), None)
    _, remark = chosen_gpu(None)
    assert remark is not None and "none was named" in remark
