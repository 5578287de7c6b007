"""Groups of any size that move nothing: shapes, values that every rank shares, and what a program asks of them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.card.distributed.conftest import Start
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.distributed.world import World, world_in_environment
from vramcast.memory import predict, replay
from vramcast.trace import StepTrace
from vramcast.trace.calls import OPTIMIZER_END
from vramcast.trace.kept import Return, settled
from vramcast.trace.schema import KEPT, MARK

tells_the_reduction = pytest.mark.skipif(INSTALLED < (2, 9), reason="an older torch does not tell the reduction")


def test_a_rank_of_a_large_world(start: Start) -> None:
    start(16_383, 16_384)
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (16_383, 16_384, "nccl")
    dist.barrier(device_ids=[0])
    assert dist.barrier(async_op=True).wait()


@tells_the_reduction
def test_every_rank_holds_what_this_one_holds(start: Start) -> None:
    start(2, 4)
    numbers = torch.arange(4, device="cuda")
    dist.all_reduce(numbers)
    assert numbers.tolist() == [0, 4, 8, 12]
    dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
    assert numbers.tolist() == [0, 4, 8, 12]
    on_host = torch.ones(2)
    dist.all_reduce(on_host)
    assert on_host.tolist() == [4, 4]
    mine = torch.zeros(1, dtype=torch.long, device="cuda")
    dist.reduce_scatter_tensor(mine, numbers)
    assert mine.tolist() == [32], "the third of four, four times"
    all_of_them = torch.zeros(4, dtype=torch.long, device="cuda")
    dist.all_gather_into_tensor(all_of_them, mine)
    assert all_of_them.tolist() == [32] * 4
    received = torch.zeros(4, dtype=torch.long, device="cuda")
    dist.all_to_all_single(received, numbers)
    assert received.tolist() == [8] * 4, "each sends what this rank would send to itself"


def test_collectives_allocate_nothing(start: Start) -> None:
    start(0, 8)
    part, whole = torch.empty(1 << 20, device="cuda"), torch.empty(8 << 20, device="cuda")
    before = torch.cuda.memory_allocated()
    work = dist.all_gather_into_tensor(whole, part, async_op=True)
    assert work.wait() and work.get_future().value()[0] is whole
    dist.reduce_scatter_tensor(part, whole)
    dist.broadcast(part, 0)
    assert torch.cuda.memory_allocated() == before == torch.cuda.max_memory_allocated()


def test_objects_are_the_same_everywhere(start: Start) -> None:
    start(1, 3)
    found: list[object] = [None] * 3
    dist.all_gather_object(found, {"seed": 7})
    assert found == [{"seed": 7}] * 3
    told = ["mine"]
    dist.broadcast_object_list(told, src=0)
    assert told == ["mine"]
    given: list[object] = [None]
    dist.scatter_object_list(given, ["a", "b", "c"])
    assert given == ["b"]


def test_groups_and_meshes(start: Start) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    start(5, 8)
    group = dist.new_group([1, 5, 7])
    assert dist.get_rank(group) == 1 and dist.get_world_size(group) == 3
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
    assert list(mesh.get_coordinate() or ()) == [1, 1]
    assert dist.get_process_group_ranks(mesh["shard"].get_group()) == [4, 5, 6, 7]
    if hasattr(dist, "split_group"):
        part = dist.split_group(split_ranks=[[0, 1, 2, 3], [4, 5, 6, 7]])
        assert part is not None and dist.get_process_group_ranks(part) == [4, 5, 6, 7]


def test_the_card_of_a_local_rank(start: Start) -> None:
    start(11, 16, LOCAL_RANK="3", LOCAL_WORLD_SIZE="8")
    torch.cuda.set_device(3)
    assert torch.cuda.device_count() == 8 and torch.cuda.current_device() == 3
    assert torch.ones(2, device="cuda").device == torch.device("cuda", 3)
    assert torch.ones(2).to("cuda:3").device == torch.device("cuda", 3)
    with pytest.raises(Exception, match="8 cards"):
        torch.ones(2, device="cuda:8")


def test_processes_that_the_program_starts_itself(start: Start) -> None:
    start(2, 4)
    ran: list[int] = []
    torch.multiprocessing.spawn(lambda rank, more: ran.append(rank + more), args=(5,), nprocs=4)
    assert ran == [7]


def test_the_world_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert world_in_environment() == World()
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("RANK", "9")
    assert world_in_environment() == World(9, 16, 0, 8)
    monkeypatch.setenv("WORLD_SIZE", "sixteen")
    with pytest.raises(Exception, match=r"WORLD_SIZE is 'sixteen'"):
        world_in_environment()


def test_what_nccl_takes_is_an_interval(start: Start) -> None:
    card = start(0, 16, LOCAL_WORLD_SIZE="8")
    dist.all_reduce(torch.ones(4, device="cuda"))
    (group,) = card._machine.communicators.by_name.values()
    assert (group.size, group.nodes) == (16, 2)
    assert group.least_bytes == 96 << 20
    assert group.most_bytes == (768 + 256 + 512) << 20
    dist.all_to_all_single(torch.empty(16, device="cuda"), torch.empty(16, device="cuda"))
    assert group.most_bytes > 4 << 30


holds_tensors = pytest.mark.skipif(INSTALLED < (2, 8), reason="an older torch keeps their memory by record_stream")


@holds_tensors
@pytest.mark.parametrize("backend, sets", [("nccl", 1), ("gloo", 0)])
def test_buckets_of_the_first_step_may_outlive_those_that_replace_them(start: Start, backend: str, sets: int) -> None:
    """One further set of buckets until the second step's first sum in three runs of accumulation_no_sync.py, and none
    in the fourth: NCCL's watchdog had looked."""
    card = start(0, 1)
    dist.destroy_process_group()
    dist.init_process_group(backend)
    bare = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(8))).cuda()
    model = torch.nn.parallel.DistributedDataParallel(bare, device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.empty(4, 1024, device="cuda")).sum()
        card.mark("before the backward pass")
        loss.backward()
        optimizer.step()
    trace = card.trace()
    assert all(KEPT not in settled(trace, when).event_kind for when in Return)
    earliest, likely, latest = (_alive_at_the_last_mark(settled(trace, when)) for when in Return)
    assert latest - earliest == sets * 8 * 1024 * 1024 * 4
    assert likely == latest, "next to nothing happens between the sums and the second step"
    prediction = predict(trace)
    least, most = prediction.reserved_range
    assert most == prediction.peak_reserved_bytes and (least < most) == bool(sets)
    assert prediction.reserved_interval[0] < least or not sets
    assert any(note.topic == "DDP" for note in prediction.notes) == bool(sets)


def _alive_at_the_last_mark(trace: StepTrace) -> int:
    label = trace.labels.index("before the backward pass")
    marks = [
        event
        for event, (code, arg) in enumerate(zip(trace.event_kind, trace.event_arg, strict=True))
        if code == MARK and arg == label
    ]
    return replay(trace).requested_bytes[marks[-1]]


@holds_tensors
def test_ops_that_tell_the_time_of_the_first_sums_are_no_part_of_the_step_that_is_timed(start: Start) -> None:
    """The third step is asked for: the ops of the first two are noted beside the others."""
    card = start(0, 1)
    card.log_ops(after_steps=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.empty(4, 64, device="cuda")).sum().backward()
        optimizer.step()
    calls = card.trace().calls
    assert calls is not None
    assert [calls.ops[number] for number in calls.call].count(OPTIMIZER_END) == 1
    assert KEPT in card.trace().event_kind


def test_ddp_takes_no_times_of_a_device_that_it_does_not_know(
    start: Start, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    """Its warning that time stats are collected for CPU and CUDA devices only is one that no card shows."""
    start(0, 1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda(), device_ids=[0])
    for _ in range(12):  # its tenth iterations and those that follow are written down, too
        model(torch.empty(4, 8, device="cuda")).sum().backward()
    said = capfd.readouterr().err + " ".join(str(warning.message) for warning in recwarn)
    assert "Time stats" not in said
