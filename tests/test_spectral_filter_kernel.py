"""The CUDA kernel of the spectral filters: its source run on a CPU, and the kernel itself where there is a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import pytest
import torch
from torch import Tensor

from bymi.aggregation import CAF, Filtering, SetRule
from bymi.aggregation import spectral_filter_kernel as module
from bymi.core.cuda_kernels import compiled
from bymi.core.random_streams import stream
from tests.reference.peer_rules import ALL_TRANSCRIPTIONS
from tests.reference.rules import Node

SOURCE = Path(__file__).parent / "cuda_on_cpu_filter.cpp"
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

RULES: dict[str, SetRule] = {"filtering": Filtering(), "median": Filtering(about="median"), "caf": CAF()}
KINDS = ("noise", "outliers", "far", "two groups", "pairs", "decay", "small", "large")
SIZES = ((3, 5), (7, 40), (33, 20), (76, 300), (96, 200), (128, 150))


def cloud(kind: str, count: int, dim: int) -> Tensor:
    """Points [n, d] about one that is no outlier."""
    random = stream(0, "points", node=count, step=KINDS.index(kind))
    points = random.normal(count, dim)
    groups = {"outliers": [(count // 3, 20.0)], "far": [(count // 4, 1e4)], "two groups": [(count // 6, 30.0)] * 2}
    start = 0
    for size, distance in groups.get(kind, []):
        points[start : start + size] += distance * random.normal(dim)
        start += size
    if kind == "pairs":
        points[count // 2 :] = points[: count - count // 2].clone()
    if kind == "decay":
        points *= torch.logspace(0, -4, dim, dtype=torch.float64)
    points *= {"small": 1e-8, "large": 1e8}.get(kind, 1.0)
    return points - points[-1]


def products(points: Tensor, extra: int = 0) -> tuple[Tensor, Tensor]:
    """Inner products [1, n, n] and validity [1, n], with `extra` places of padding that hold numbers."""
    padded = torch.cat([points, torch.full((extra, points.shape[1]), 3.0, dtype=torch.float64)])
    valid = torch.arange(len(padded)) < len(points)
    return (padded @ padded.T)[None], valid[None]


def goal(rule: SetRule, valid: Tensor) -> Tensor:
    return rule._goal(valid) if isinstance(rule, CAF) else (1 - rule.share) * valid.sum(1, dtype=torch.float64)  # type: ignore[attr-defined]


class Emulated(Protocol):
    def __call__(self, rule: SetRule, count: int) -> ctypes.CDLL: ...


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    """The kernel for a rule and a number of points, compiled for the CPU."""
    compiler, folder = shutil.which("g++"), tmp_path_factory.mktemp("kernel")
    if compiler is None:
        pytest.skip("needs g++")

    def build(rule: SetRule, count: int) -> ctypes.CDLL:
        macros = module.macros(count, caf=isinstance(rule, CAF), median=getattr(rule, "about", "") == "median")
        words = [f"-D{name}={value}" for name, value in macros.items()]
        path = folder / ("filter" + "".join(words) + ".so")
        if not path.exists():
            options = ["-O2", "-std=c++17", "-shared", "-fPIC", "-Wl,-Bsymbolic"]
            subprocess.run([compiler, *options, *words, str(SOURCE), "-o", str(path)], check=True)
        return ctypes.CDLL(str(path))

    return build


def address(values: Tensor) -> ctypes.c_void_p:
    assert values.is_contiguous()
    return ctypes.c_void_p(values.data_ptr())


def filtered(emulated: Emulated, rule: SetRule, gram: Tensor, valid: Tensor) -> Tensor:
    output, ends = torch.empty_like(gram[:, 0]), goal(rule, valid)
    arguments = [address(values) for values in (gram, valid, ends, output)]
    shared = module.shared_memory(module.macros(gram.shape[1], caf=False, median=False)["TILE"])
    assert emulated(rule, gram.shape[1]).filter(*arguments, len(gram), gram.shape[1], shared) == 0, "wrote behind its memory"
    return output


def literal(name: str, points: Tensor) -> Tensor:
    rule, rows = RULES[name], list(points.numpy())
    share = 1 / len(rows)
    node = Node(rows[0], rows[1:], [share] * (len(rows) - 1), share, lambda vector: 0.0, 1, 10)
    return torch.from_numpy(ALL_TRANSCRIPTIONS["caf" if name == "caf" else "filtering"](node, **asdict(rule)))  # type: ignore[call-overload]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("count", "dim"), SIZES)
def test_the_source_filters_as_the_rule_does(name: str, count: int, dim: int, emulated: Emulated) -> None:
    for kind in KINDS if count < 50 else ("noise", "two groups"):
        gram, valid = products(cloud(kind, count, dim), extra=min(2, 128 - count))
        found = filtered(emulated, RULES[name], gram, valid)
        expected = RULES[name].weights(gram, valid)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9 / count, msg=lambda text, kind=kind: f"{kind}: {text}")
        assert not found[~valid].any()


@pytest.mark.parametrize("name", RULES)
def test_the_source_is_the_literal_transcription(name: str, emulated: Emulated) -> None:
    for kind in KINDS:
        points = cloud(kind, 20, 12)
        mean = filtered(emulated, RULES[name], *products(points))[0] @ points
        assert float((mean - literal(name, points)).norm() / points.norm()) < 1e-9, kind


def top_eigenspace(emulated: Emulated, points: Tensor, weight: Tensor) -> None:
    """Projections are along a direction of largest variance: (1) their variance, (2) what the covariance makes of them."""
    gram, share = (points @ points.T)[None], weight / weight.sum()
    along = torch.empty_like(weight)
    emulated(RULES["filtering"], len(points)).projections(address(gram), address(share), address(along), 1, len(points))
    scaled = share.sqrt()[:, None] * (points - share @ points)
    matrix = scaled @ scaled.T
    largest = torch.linalg.eigvalsh(matrix)[-1]
    vector = share.sqrt() * along
    assert float((vector.square().sum() - largest).abs()) <= 1e-12 * float(largest)
    assert float((matrix @ vector - largest * vector).norm()) <= 1e-11 * float(largest**1.5)
    assert not along[weight == 0].any()


@pytest.mark.parametrize(("count", "dim"), SIZES)
def test_projections_are_along_the_top_eigenvector(count: int, dim: int, emulated: Emulated) -> None:
    for kind in KINDS:
        points, random = cloud(kind, count, dim), stream(1, "weights", node=count)
        uneven = random.normal(count).abs()
        for weight in (torch.ones_like(uneven), uneven, uneven**8, torch.where(uneven > 0.5, uneven, 0.0)):
            top_eigenspace(emulated, points, weight)


def test_projections_where_eigenvalues_are_equal_or_almost(emulated: Emulated) -> None:
    """Any vector of the eigenspace is one: corners of a simplex, a cross, and gaps down to rounding."""
    corners = torch.eye(40, dtype=torch.float64)
    cross = torch.cat([corners[:20, :20], -corners[:20, :20]])
    top_eigenspace(emulated, corners, torch.ones(40, dtype=torch.float64))
    top_eigenspace(emulated, cross, torch.ones(40, dtype=torch.float64))
    for gap in (1e-3, 1e-6, 1e-9, 1e-12, 1e-15):
        top_eigenspace(
            emulated, cross * torch.linspace(1 - gap, 1, 20, dtype=torch.float64), torch.ones(40, dtype=torch.float64)
        )


def test_points_that_coincide_are_not_filtered(emulated: Emulated) -> None:
    for count in (1, 2, 50):
        gram, valid = products(torch.zeros(count, 4, dtype=torch.float64))
        for rule in RULES.values():
            assert torch.equal(filtered(emulated, rule, gram, valid), valid.double() / count)


def test_on_a_cpu_there_is_no_kernel() -> None:
    gram, valid = products(cloud("noise", 7, 5))
    assert module.filtered(gram, valid, valid.sum(1).double()) is None


class OnCuda:
    """What `filtered` looks at, of products on a GPU."""

    is_cuda, device = True, torch.device("cuda", 0)

    def __init__(self, sets: int, points: int, dtype: torch.dtype = torch.float64) -> None:
        self.shape, self.dtype = torch.Size((sets, points, points)), dtype

    def __len__(self) -> int:
        return self.shape[0]


def test_the_kernel_is_for_up_to_128_points_in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, int]] = []
    monkeypatch.setattr(module, "_kernel", lambda device, **macros: asked.append(macros))  # as if it could not be compiled
    single = torch.float32
    for gram in (OnCuda(2, 128), OnCuda(2, 129), OnCuda(0, 7), OnCuda(2, 7, single), OnCuda(1, 33)):
        valid = torch.ones(gram.shape[:2], dtype=torch.bool)
        assert module.filtered(gram, valid, torch.ones(len(gram), dtype=torch.float64)) is None  # type: ignore[arg-type]
    assert [macros["TILE"] for macros in asked] == [8, 4]


def test_without_its_source_there_is_no_kernel(tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    with pytest.warns(UserWarning, match=r"kernel spectral_filter not compiled, so slower \(.*No such file"):
        assert compiled(tmp_path / "absent.cu", "spectral_filter", device, 256, 1024) is None


@on_a_gpu
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("count", "dim"), [*SIZES, (140, 300)])
def test_on_a_gpu_the_rule_is_that_on_a_cpu(name: str, count: int, dim: int) -> None:
    for kind in KINDS:
        points = cloud(kind, count, dim)
        gram, valid = products(points, extra=2)
        found = RULES[name].weights(gram.cuda(), valid.cuda()).cpu()
        expected = RULES[name].weights(gram, valid)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9 / count, msg=lambda text, kind=kind: f"{kind}: {text}")


@on_a_gpu
def test_on_a_gpu_the_kernel_is_used() -> None:
    gram, valid = (values.cuda() for values in products(cloud("outliers", 76, 300)))
    assert module.filtered(gram, valid, goal(Filtering(), valid)) is not None
