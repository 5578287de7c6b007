"""PYTORCH_ALLOC_CONF: what is read, what is refused, and how requests are rounded."""

import pytest

from vramcast.allocator import AllocatorConf, AllocatorConfError, BackendNotModelled
from vramcast.allocator.conf import from_environment
from vramcast.allocator.constants import MIB, UNLIMITED
from vramcast.errors import CannotPredict, UsageError


def test_nothing_given_is_torchs_default() -> None:
    for text in (None, "", "  "):
        conf = AllocatorConf.parse(text)
        assert not conf.expandable_segments
        assert conf.max_split_bytes == UNLIMITED
        assert conf.large_segment_bytes == conf.max_non_split_rounding_bytes == 20 * MIB
        assert conf.garbage_collection_threshold == 0.0
        assert conf.per_process_memory_fraction == 1.0


def test_every_key_that_decides_something() -> None:
    conf = AllocatorConf.parse(
        " expandable_segments:True, max_split_size_mb : 128,max_non_split_rounding_mb:64,large_segment_size_mb:32,"
        "garbage_collection_threshold:0.75,per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True,backend:native,"
    )
    assert conf.expandable_segments
    assert conf.max_split_bytes == 128 * MIB
    assert conf.max_non_split_rounding_bytes == 64 * MIB
    assert conf.large_segment_bytes == 32 * MIB
    assert conf.garbage_collection_threshold == 0.75
    assert conf.per_process_memory_fraction == 0.5
    assert conf.throw_on_cudamalloc_oom


def test_non_split_rounding_follows_the_large_segment() -> None:
    assert AllocatorConf.parse("large_segment_size_mb:48").max_non_split_rounding_bytes == 48 * MIB


@pytest.mark.parametrize(
    "text",
    [
        "pinned_use_background_threads:True",
        "pinned_use_cuda_host_register:True,pinned_num_register_threads:8",
        "pinned_reserve_segment_size_mb:100,pinned_max_round_threshold_mb:64,pinned_max_cached_size_mb:64",
        "pinned_free_catch_all:True,release_lock_on_cudamalloc:True,graph_capture_record_stream_reuse:True",
    ],
)
def test_keys_without_effect_on_device_memory_are_accepted(text: str) -> None:
    conf = AllocatorConf.parse(text)
    assert conf.text == text
    assert conf.round_bytes(1) == 512


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_splitsize_mb:64", "did you mean 'max_split_size_mb'?"),
        ("expandable_segment:True", "did you mean 'expandable_segments'?"),
        ("garbage_collect_threshold:0.5", "did you mean 'garbage_collection_threshold'?"),
        ("zzz:1", "known keys: backend"),
        ("max_split_size_mb=64", "write 'max_split_size_mb:64'"),
        ("max_split_size_mb", "needs a value"),
        ("max_split_size_mb:", "needs a value"),
        ("max_split_size_mb:19", "must be at least 20"),
        ("large_segment_size_mb:32,max_split_size_mb:31", "must be at least 32"),
        ("max_split_size_mb:31,large_segment_size_mb:32", "must be at least 32"),
        ("max_split_size_mb:many", "whole number"),
        ("max_split_size_mb:[64]", "not a list"),
        ("max_non_split_rounding_mb:1", "must be at least 20"),
        ("large_segment_size_mb:10", "greater than 10"),
        ("garbage_collection_threshold:1.0", "between 0.0 and 1.0"),
        ("garbage_collection_threshold:high", "needs a number"),
        ("per_process_memory_fraction:1.5", "from 0.0 to 1.0"),
        ("expandable_segments:true", "True or False"),
        ("expandable_segments:True max_split_size_mb:64", "expected ','"),
        ("roundup_power2_divisions:3", "powers of two"),
        ("roundup_power2_divisions:[100:4]", "powers of two"),
        ("roundup_power2_divisions:[256]", "SIZE_MB:DIVISIONS"),
        ("roundup_power2_divisions:[256:4", "not closed"),
        ("roundup_power2_divisions:[256:4]expandable_segments:True", "expected ','"),
        ("pinned_num_register_threads:3", "powers of two"),
        ("pinned_num_register_threads:256", "at most 128"),
        ("backend:jemalloc", "native or cudaMallocAsync"),
        (",expandable_segments:True", "unknown key ','"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(AllocatorConfError) as caught:
        AllocatorConf.parse(text)
    assert said in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, UsageError)
    assert caught.value.exit_code == 2


def test_the_drivers_own_pool_is_not_modelled() -> None:
    with pytest.raises(BackendNotModelled, match="cudaMallocAsync is not modelled") as caught:
        AllocatorConf.parse("backend:cudaMallocAsync")
    assert isinstance(caught.value, CannotPredict)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("version", [(2, 6), (2, 11), (2, 14)])
def test_the_older_environment_variable_comes_first(version: tuple[int, int]) -> None:
    both = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    assert from_environment(both, version) == "max_split_size_mb:64"
    assert from_environment({}, version) is None


@pytest.mark.parametrize(("version", "text"), [((2, 9), None), ((2, 10), "expandable_segments:True")])
def test_the_newer_environment_variable_came_with_torch_2_10(version: tuple[int, int], text: str | None) -> None:
    assert from_environment({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, version) == text


@pytest.mark.parametrize(
    ("text", "last_to_refuse"),
    [
        ("large_segment_size_mb:64", (2, 10)),
        ("per_process_memory_fraction:0.5", (2, 9)),
        ("throw_on_cudamalloc_oom:True", (2, 11)),
        ("graph_capture_record_stream_reuse:True", (2, 8)),
        ("max_split_size_mb:20", (2, 9)),
        ("max_split_size_mb:21", None),
        ("expandable_segments:True,garbage_collection_threshold:0.8", None),
    ],
)
def test_what_an_older_torch_would_refuse(text: str, last_to_refuse: tuple[int, int] | None) -> None:
    conf = AllocatorConf.parse(text)
    refuse = [minor for minor in range(6, 15) if conf.refused_by((2, minor))]
    assert refuse == ([] if last_to_refuse is None else list(range(6, last_to_refuse[1] + 1)))


def test_requests_are_rounded_to_512_bytes() -> None:
    conf = AllocatorConf()
    assert [conf.round_bytes(size) for size in (1, 511, 512, 513, 1024, 1025)] == [512, 512, 512, 1024, 1024, 1536]


def test_power_of_two_divisions_round_up_to_the_next_one() -> None:
    conf = AllocatorConf.parse("roundup_power2_divisions:4")
    # Between 1 MiB and 2 MiB the divisions are 256 KiB apart.
    assert conf.round_bytes(MIB) == MIB
    assert conf.round_bytes(MIB + 1) == MIB + 256 * 1024
    assert conf.round_bytes(1_900_000) == 2 * MIB
    # Too small a request for four divisions of at least 512 bytes is rounded as ever.
    assert conf.round_bytes(2048) == 2048
    assert conf.round_bytes(2049) == 2560
    assert conf.round_bytes(2000) == 2048


def test_divisions_by_size_interval() -> None:
    conf = AllocatorConf.parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    # The first boundary covers everything below it, ">" everything beyond the last; gaps keep the default.
    assert conf.roundup_power2_divisions == (1,) * 9 + (2, 4) + (8,) * 5
    assert conf.round_bytes(200 * MIB + 1) == 200 * MIB + 512
    assert conf.round_bytes(600 * MIB) == 768 * MIB
    assert conf.round_bytes(1100 * MIB) == 1280 * MIB
    assert AllocatorConf.parse("roundup_power2_divisions:[4:8,16:2]").roundup_power2_divisions == (
        (8, 8, 8, 0, 2) + (0,) * 11
    )
