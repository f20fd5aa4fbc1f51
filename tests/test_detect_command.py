"""`bymi detect`: the identification alone, on two files of half gradients."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bymi import identify
from bymi.detection import CENTRES, SCALES
from tests.commands import bymi, mistake

LIARS = [3, 8, 11, 20, 27]


@pytest.fixture(autouse=True)
def halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """Two half gradients of 30 machines, five of which lie, as files of every kind in the current folder."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    pair = random.standard_normal((30, 4)), random.standard_normal((30, 4))
    for name, half in zip(("first", "second"), pair, strict=True):
        half[LIARS] += 8
        np.save(f"{name}.npy", half)
        np.savez(f"{name}.npz", gradients=half)
        np.savetxt(f"{name}.csv", half, delimiter=",", fmt="%.17g")
    return pair


def judge(*words: object) -> dict[str, Any]:
    """The JSON answer, read by a strict reader: NaN and Infinity are no JSON."""
    answer = bymi("detect", *words, "--json")
    assert (answer.code, answer.err) == (0, "")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    verdict = json.loads(answer.out, parse_constant=refuse)
    assert list(verdict) == ["scores", "threshold", "flagged"]
    return verdict


@pytest.mark.parametrize("suffixes", [(".npy", ".npy"), (".npz", ".npz"), (".csv", ".csv"), (".npy", ".csv")])
def test_files_of_every_kind_give_the_verdict_of_identify(
    halves: tuple[np.ndarray, np.ndarray], suffixes: tuple[str, str]
) -> None:
    verdict = judge(f"first{suffixes[0]}", f"second{suffixes[1]}")
    expected = identify(*halves)
    assert verdict["scores"] == expected.scores.tolist()
    assert verdict["threshold"] == float(expected.threshold)
    assert verdict["flagged"] == expected.flagged.nonzero().flatten().tolist()
    assert set(LIARS) <= set(verdict["flagged"])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("centre", CENTRES)
def test_every_centre_and_scale_is_the_one_of_the_library(
    halves: tuple[np.ndarray, np.ndarray], centre: str, scale: str
) -> None:
    verdict = judge("first.npy", "second.npy", "--centre", centre, "--scale", scale)
    expected = identify(*halves, centre=CENTRES[centre](), scale=SCALES[scale]())
    assert verdict["scores"] == expected.scores.tolist()
    assert set(LIARS) <= set(verdict["flagged"])


def test_level_and_offset_reach_the_threshold(halves: tuple[np.ndarray, np.ndarray]) -> None:
    for level, offset in ((0.05, 0), (0.2, 1), (0.6, 0), (0.1, 1)):
        verdict = judge("first.npy", "second.npy", "--fdr-level", level, "--offset", offset)
        expected = identify(*halves, fdr_level=level, offset=offset)
        limit = float(expected.threshold)
        assert verdict["threshold"] == (limit if np.isfinite(limit) else None)
        assert verdict["flagged"] == expected.flagged.nonzero().flatten().tolist()
    # With offset 1 and level 0.1, ten machines must stand out before one is flagged; here five do.
    assert (verdict["threshold"], verdict["flagged"]) == (None, [])


def test_nobody_qualifies_among_equal_machines() -> None:
    np.save("same.npy", np.ones((6, 3)))
    assert judge("same.npy", "same.npy") == {"scores": [0.0] * 6, "threshold": None, "flagged": []}
    assert "0 of 6 rows flagged, no threshold qualifies" in bymi("detect", "same.npy", "same.npy").words


def test_the_table_lists_every_row_by_falling_score(halves: tuple[np.ndarray, np.ndarray]) -> None:
    answer = bymi("detect", "first.npy", "second.npy")
    expected = identify(*halves)
    rows = [words for words in answer.rows if words[0].isdigit() and words[1] != "of"]
    order = expected.scores.argsort(descending=True).tolist()
    assert [(int(row), score) for row, score, *_ in rows] == [(row, f"{float(expected.scores[row]):.4g}") for row in order]
    assert [words[2:] == ["flagged"] for words in rows] == expected.flagged[order].tolist()
    assert f"{int(expected.flagged.sum())} of 30 rows flagged, threshold {float(expected.threshold):.4g}" in answer.words


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["missing.npy", "second.npy"], "cannot read missing.npy: No such file or directory"),
        (["first.npy", "missing.csv"], "cannot read missing.csv: No such file or directory"),
        (["first.txt", "second.npy"], "first.txt: got a .txt file, allowed: .npy, .npz, .csv"),
        (["first", "second.npy"], "first: got a nameless file, allowed: .npy, .npz, .csv"),
        (["first.npy"], "Missing argument"),
        (["--fdr-level", "0"], "fdr_level: got 0.0, allowed: strictly between 0 and 1"),
        (["--fdr-level", "1"], "fdr_level: got 1.0, allowed: strictly between 0 and 1"),
        (["--fdr-level", "-1"], "fdr_level: got -1.0, allowed: strictly between 0 and 1"),
        (["--fdr-level", "nan"], "fdr_level: got nan, allowed: strictly between 0 and 1"),
        (["--fdr-level", "low"], "Invalid value for '--fdr-level'"),
        (["--offset", "2"], "offset: got 2, allowed: 0 (paper) or 1"),
        (["--centre", "medain"], "--centre: got 'medain'; did you mean 'median'?; allowed: filtering, "),
        (["--centre", "trimmed_mean"], "--centre: got 'trimmed_mean'; did you mean 'trimmed-mean'?"),
        (["--scale", "identty"], "--scale: got 'identty'; did you mean 'identity'?; allowed: identity, pca"),
        (["--alpha", "0.1"], "No such option: --alpha"),
    ],
)
def test_wrong_words_are_one_line(words: list[str], expected: str) -> None:
    files = ["first.npy", "second.npy"] if words[0].startswith("--") else []
    assert mistake("detect", *files, *words).startswith(expected)


def array(values: Any) -> Callable[[Path], None]:
    return lambda path: np.save(path, values)


def content(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


def header(text: bytes) -> Callable[[Path], None]:
    """An .npy file that is nothing but its header."""
    line = text.ljust(117) + b"\n"
    return content(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line)


def two_arrays(path: Path) -> None:
    np.savez(path, one=np.ones((3, 2)), other=np.ones((3, 2)))


def damaged(path: Path) -> None:
    """A compressed archive with a scratch in the middle of its data."""
    np.savez_compressed(path, np.random.default_rng(0).standard_normal((30, 4)))
    data = bytearray(path.read_bytes())
    data[120:200] = b"\xff" * 80
    path.write_bytes(data)


def with_nan() -> np.ndarray:
    matrix = np.ones((30, 4))
    matrix[3, 1], matrix[5, 0] = np.nan, np.inf
    return matrix


@pytest.mark.parametrize(
    ("name", "make", "expected"),
    [
        ("bad.npy", array(np.ones((10, 4))), "first and second must have one shape, got [10, 4] and [30, 4]"),
        ("bad.npy", array(np.ones((30, 5))), "first and second must have one shape, got [30, 5] and [30, 4]"),
        ("bad.npy", array(np.ones(30)), "bad.npy: got an array of shape [30], need a matrix [n, d]"),
        ("bad.npy", array(np.ones((2, 30, 4))), "bad.npy: got an array of shape [2, 30, 4], need a matrix [n, d]"),
        ("bad.npy", array(np.ones((1, 4))), "first: got shape [1, 4], need a matrix [n, d] with n >= 2"),
        ("bad.npy", array(np.ones((30, 0))), "first: got shape [30, 0], need a matrix [n, d] with n >= 2 rows and d >= 1"),
        ("bad.npy", array(with_nan()), "bad.npy: rows [3, 5] hold NaN or Inf"),
        ("bad.npy", array(np.array([["1", "x"]])), "bad.npy: got numbers of type <U1, allowed: real numbers"),
        ("bad.npy", content(b""), "bad.npy is not a readable .npy matrix: "),
        ("bad.npy", content(b"not an array"), "bad.npy is not a readable .npy matrix: "),
        ("bad.npy", Path.mkdir, "cannot read bad.npy: Is a directory"),
        ("bad.npz", content(b""), "bad.npz is not a readable .npz matrix: "),
        pytest.param(
            "bad.npz",
            content(b"PK\x03\x04 no archive"),
            "bad.npz is not a readable .npz matrix: ",
            # numpy leaves such a file open for the garbage collector to find.
            marks=pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
        ),
        ("bad.npz", two_arrays, "bad.npz is not a readable .npz matrix: it holds 2 arrays (one, other), need exactly one"),
        ("bad.csv", content(b""), "bad.csv is not a readable .csv matrix: it is empty"),
        ("bad.csv", content(b"\n \n"), "bad.csv is not a readable .csv matrix: it is empty"),
        ("bad.csv", content(b"a,b\n1,2\n"), "bad.csv is not a readable .csv matrix: could not convert string 'a'"),
        ("bad.csv", content(b"1,2\n3\n"), "bad.csv is not a readable .csv matrix: the number of columns changed"),
        ("bad.csv", content(b"1,nan\n2,3\n"), "bad.csv: rows [0] hold NaN or Inf"),
        ("bad.csv", content(b"\xff\xfe\x00"), "bad.csv is not a readable .csv matrix: "),
        ("bad.npz", damaged, "bad.npz is not a readable .npz matrix: "),
        ("bad.npy", header(b"{{{{"), "bad.npy is not a readable .npy matrix: "),
        (
            "bad.npy",
            header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999, 9999), }"),
            "bad.npy is not a readable .npy matrix: ",
        ),
        ("bad.npy", array(np.ones((30, 4)) * 1j), "bad.npy: got numbers of type complex128, allowed: real numbers"),
        ("bad.csv", content(b"# only a comment\n"), "bad.csv is not a readable .csv matrix: it is empty"),
    ],
)
def test_bad_files_are_one_line(name: str, make: Callable[[Path], Any], expected: str) -> None:
    make(Path(name))
    assert mistake("detect", name, "second.npy").startswith(expected)


@pytest.mark.parametrize("centre", CENTRES)
def test_enormous_values_get_a_verdict_or_one_line(halves: tuple[np.ndarray, np.ndarray], centre: str) -> None:
    for name, half in zip(("first", "second"), halves, strict=True):
        np.save(f"{name}.npy", half * 1e200)
    words = ("first.npy", "second.npy", "--centre", centre)
    if bymi("detect", *words).code == 0:
        assert set(LIARS) <= set(judge(*words)["flagged"])
    else:
        mistake("detect", *words)


class Bomb:
    """Unpickling it makes a folder: a stand-in for anything that a stranger's file could do."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("name", ["bomb.npy", "bomb.npz"])
def test_nothing_is_ever_unpickled(tmp_path: Path, name: str) -> None:
    bomb = np.array([[Bomb(), 1.0], [2.0, 3.0]], dtype=object)
    (np.save if name.endswith(".npy") else np.savez)(name, bomb)
    assert mistake("detect", name, name).startswith(
        f"{name} is not a readable {name[-4:]} matrix: Object arrays cannot be loaded"
    )
    assert not (tmp_path / "exploded").exists()
    np.load(name, allow_pickle=True)["arr_0" if name.endswith(".npz") else ...]
    assert (tmp_path / "exploded").exists(), "the file does explode where unpickling is allowed, so the test means something"
