"""Named random streams: what a draw depends on, and that it looks random."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bymi import InputError
from bymi.core.random_streams import stream


def test_a_node_draws_alone_what_it_draws_among_others() -> None:
    nodes = torch.tensor([3, 7, 11, 148])
    together = stream(5, "noise", node=nodes, step=2)
    for place, node in enumerate(nodes.tolist()):
        alone = stream(5, "noise", node=node, step=2)
        assert torch.equal(together.normal(13, 3)[place], alone.normal(13, 3))
        assert torch.equal(together.permutation(20)[place], alone.permutation(20))
        assert torch.equal(together.integers(9, 40)[place], alone.integers(9, 40))


def test_many_steps_at_once_are_the_single_steps() -> None:
    nodes = torch.arange(4)
    moments = torch.arange(6)[:, None]
    block = stream(1, "batch", node=nodes, step=moments).integers(100, 8)
    assert block.shape == (6, 4, 8)
    for step in range(6):
        assert torch.equal(block[step], stream(1, "batch", node=nodes, step=step).integers(100, 8))


def test_a_longer_draw_begins_like_a_shorter_one() -> None:
    assert torch.equal(stream(0, "x").bits(50)[:10], stream(0, "x").bits(10))


@pytest.mark.parametrize("change", [{"seed": 1}, {"purpose": "y"}, {"node": 4}, {"step": 1}])
def test_seed_purpose_node_and_step_each_change_the_draw(change: dict[str, object]) -> None:
    base = {"seed": 0, "purpose": "x", "node": 3, "step": 0}
    other = {**base, **change}

    def draw(of: dict[str, object]) -> torch.Tensor:
        return stream(of["seed"], of["purpose"], node=of["node"], step=of["step"]).bits(8)  # type: ignore[arg-type]

    assert not (draw(base) == draw(other)).any()


def test_node_and_step_are_not_interchangeable() -> None:
    assert not torch.equal(stream(0, "x", node=1, step=2).bits(4), stream(0, "x", node=2, step=1).bits(4))


def test_the_hash_is_splitmix64() -> None:
    """First outputs of SplitMix64 with state 0, by its published recurrence on Python integers."""
    mask = (1 << 64) - 1
    expected = []
    for count in range(1, 6):
        z = (count * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        expected.append(z ^ (z >> 31))
    from bymi.core.random_streams import Stream

    got = [word % (1 << 64) for word in Stream(torch.tensor(0)).bits(5).tolist()]
    assert got == expected


@pytest.mark.parametrize("high", [0, -3])
def test_there_are_no_integers_below_zero(high: int) -> None:
    with pytest.raises(InputError, match=f"high: got {high}, allowed: an integer of 1 or more"):
        stream(0, "x").integers(high, 4)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The CUDA kernels of streams, compiled for the CPU."""
    compiler, path = shutil.which("g++"), tmp_path_factory.mktemp("kernel") / "streams.so"
    if compiler is None:
        pytest.skip("needs g++")
    source = Path(__file__).parent / "cuda_on_cpu_streams.cpp"
    subprocess.run([compiler, "-O2", "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


def address(values: Tensor) -> ctypes.c_void_p:
    assert values.is_contiguous()
    return ctypes.c_void_p(values.data_ptr())


@pytest.mark.parametrize(("nodes", "count"), [([4], 1), ([0, 7, 149], 5), ([3, 2], 300), (list(range(300)), 6)])
@pytest.mark.parametrize("step", [None, 0, 41])
def test_the_source_of_the_kernels_draws_the_same(
    nodes: list[int], count: int, step: int | None, emulated: ctypes.CDLL
) -> None:
    numbers = torch.tensor(nodes)
    expected = stream(-2, "kernel", node=numbers, step=step)
    start = int(stream(-2, "kernel").keys)
    keys, drawn = torch.zeros_like(numbers), torch.full((len(nodes), count), torch.nan, dtype=torch.float64)
    words = ctypes.c_longlong(start), ctypes.c_longlong(step or 0)
    emulated.keys(address(numbers), address(keys), *words, int(step is not None), len(nodes))
    assert torch.equal(keys, expected.keys)
    emulated.draw(address(keys), address(drawn), len(nodes), count)
    torch.testing.assert_close(drawn, expected.normal(count), rtol=1e-13, atol=1e-13)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_the_same() -> None:
    nodes = torch.tensor([3, 7, 11, 148])
    for step in (None, 0, 41):
        here, there = (stream(5, "noise", node=nodes.to(device), step=step) for device in ("cpu", "cuda"))
        assert torch.equal(here.keys, there.keys.cpu())
        torch.testing.assert_close(here.normal(13, 3), there.normal(13, 3).cpu(), rtol=1e-13, atol=1e-13)


def test_uniform_integers_and_normals_have_their_moments() -> None:
    """200,000 draws over 200 streams. Each bound is six standard errors: false alarm below 3e-9 for each of six checks."""
    count = 200_000
    streams = stream(9, "moments", node=torch.arange(200))
    uniform = streams.uniform(1000).flatten()
    assert uniform.min() > 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 6 * (1 / 12 / count) ** 0.5
    assert abs(uniform.var() - 1 / 12) < 6 * (1 / 180 / count) ** 0.5
    normal = streams.normal(1000).flatten()
    assert abs(normal.mean()) < 6 * (1 / count) ** 0.5
    assert abs(normal.var() - 1) < 6 * (2 / count) ** 0.5
    counts = torch.bincount(streams.integers(10, 1000).flatten(), minlength=10).double()
    assert ((counts - count / 10).abs() < 6 * (count * 0.09) ** 0.5).all()
    neighbours = torch.corrcoef(streams.normal(1000))[0, 1:]
    assert (neighbours.abs() < 7 / 1000**0.5).all()  # 199 pairs, seven standard errors: below 6e-10


def test_a_permutation_has_every_number_once_and_no_favourite() -> None:
    """Where 0 lands in 5,000 permutations of 5: six standard errors a cell, false alarm below 1e-8."""
    orders = stream(2, "permutation", node=torch.arange(5000)).permutation(5)
    assert (orders.sort(dim=1).values == torch.arange(5)).all()
    places = torch.bincount((orders == 0).int().argmax(1), minlength=5).double()
    assert ((places - 1000).abs() < 6 * 800**0.5).all()
