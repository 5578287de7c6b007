"""The installed torch accepts and refuses the same configuration strings."""

import pytest

from vramcast.allocator import AllocatorConf

torch = pytest.importorskip("torch")

STRINGS = [
    "",
    "expandable_segments:True",
    "expandable_segments:true",
    "expandable_segments:True,",
    " expandable_segments : False , max_split_size_mb : 64 ",
    "max_split_size_mb:19",
    "max_split_size_mb:20",
    "max_split_size_mb:128MB",
    "max_split_size_mb:x",
    "max_non_split_rounding_mb:10",
    "max_non_split_rounding_mb:30",
    "garbage_collection_threshold:0",
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:1.0",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[]",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:[3:2]",
    "roundup_power2_divisions:[4:3]",
    "roundup_power2_divisions:[256:1,512:2",
    "large_segment_size_mb:10",
    "large_segment_size_mb:20",
    "pinned_use_background_threads:1",
]


@pytest.mark.parametrize("text", STRINGS)
def test_same_strings_accepted(text: str) -> None:
    set_settings = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if set_settings is None:
        pytest.skip("this torch does not say what it makes of a configuration string")
    try:
        assert _accepts(AllocatorConf.parse, text) == _accepts(set_settings, text)
    finally:
        set_settings("expandable_segments:False,large_segment_size_mb:20,pinned_use_background_threads:False")


def _accepts(read, text: str) -> bool:
    try:
        read(text)
    except (ValueError, RuntimeError):
        return False
    return True
