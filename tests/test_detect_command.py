"""`bymi detect`: the identification alone, on files of half gradients."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bymi as library
from bymi import identify
from bymi.detection import CENTRES, SCALES
from bymi.experiment import read_matrices
from tests.commands import bymi, mistake
from tests.pages import are_pictures

BYZANTINE = [3, 8, 11, 20, 27]
NAMES = [f"host-{place}" for place in range(30)]
Pair = tuple[np.ndarray, np.ndarray]


@pytest.fixture(autouse=True)
def halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Two half gradients of 30 machines, five of which lie, as files of every kind in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    pair = random.standard_normal((30, 4)), random.standard_normal((30, 4))
    for name, half in zip(("first", "second"), pair, strict=True):
        half[BYZANTINE] += 8
        np.save(f"{name}.npy", half)
        np.savez(f"{name}.npz", gradients=half)
        np.savetxt(f"{name}.csv", half, delimiter=",", fmt="%.17g")
        torch.save(torch.from_numpy(half), f"{name}.pt")
        Path(f"{name}.safetensors").write_bytes(safetensors({"gradients": half}))
    return pair


def safetensors(arrays: dict[str, np.ndarray], names: dict[str, str] | None = None) -> bytes:
    """A file as other libraries write it: without our checksum."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in arrays.items():
        begin, data = len(data), data + array.tobytes()
        kind = (names or {}).get(name, {"f8": "F64", "f4": "F32"}[array.dtype.str[1:]])
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def judge(*words: object) -> dict[str, Any]:
    """The JSON answer, read by a strict reader: NaN and Infinity are no JSON."""
    answer = bymi("detect", *words, "--json")
    assert (answer.code, answer.err) == (0, "")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(answer.out, parse_constant=refuse)


def by_row(verdict: dict[str, Any], key: str) -> list[Any]:
    """One figure of all machines, in the order of the files."""
    return [machine[key] for machine in sorted(verdict["machines"], key=lambda machine: machine["row"])]


# Files


@pytest.mark.parametrize(
    "suffixes",
    [*((suffix, suffix) for suffix in (".npy", ".npz", ".csv", ".pt", ".safetensors")), (".npy", ".csv"), (".pt", ".npz")],
)
def test_files_of_every_kind_give_the_verdict_of_identify(halves: Pair, suffixes: tuple[str, str]) -> None:
    verdict = judge(f"first{suffixes[0]}", f"second{suffixes[1]}")
    expected = identify(*halves)
    assert by_row(verdict, "score") == expected.scores.tolist()
    assert verdict["threshold"] == float(expected.threshold)
    assert verdict["flagged"] == expected.flagged.nonzero().flatten().tolist() == BYZANTINE


@pytest.mark.parametrize("kind", ["named.npz", "unnamed.npz", "squeezed.npz", "both.pt", "both.safetensors"])
def test_one_file_with_two_arrays(halves: Pair, kind: str) -> None:
    first, second = halves
    if kind == "both.pt":
        torch.save({"second": torch.from_numpy(second), "first": torch.from_numpy(first)}, kind)
    elif kind == "both.safetensors":
        Path(kind).write_bytes(safetensors({"second": second, "first": first}))
    elif kind == "named.npz":
        np.savez(kind, second=second, first=first)
    else:  # without names the order counts
        (np.savez if kind == "unnamed.npz" else np.savez_compressed)(kind, first, second)
    assert by_row(judge(kind), "score") == identify(first, second).scores.tolist()


def test_precisions_and_orders_of_numbers(halves: Pair) -> None:
    expected = identify(*halves).flagged.nonzero().flatten().tolist()
    for name, half in zip(("first", "second"), halves, strict=True):
        np.save(f"{name}-f2.npy", half.astype(np.float16))
        np.save(f"{name}-big.npy", half.astype(">f4"))
        np.save(f"{name}-int.npy", (1000 * half).astype(np.int32))
        np.save(f"{name}-fortran.npy", np.asfortranarray(half))
        torch.save(torch.from_numpy(half).bfloat16(), f"{name}-bf16.pt")
        odd = safetensors({"a": half.astype(np.float32)})
        Path(f"{name}-f4.safetensors").write_bytes(odd)
    for kind in ("f2.npy", "big.npy", "int.npy", "fortran.npy", "bf16.pt", "f4.safetensors"):
        assert judge(f"first-{kind}", f"second-{kind}")["flagged"] == expected, kind


def test_names_from_a_file_an_archive_and_a_column(halves: Pair) -> None:
    first, second = halves
    Path("names.txt").write_text("\n".join(NAMES) + "\n\n")
    np.savez("both.npz", first=first, second=second, names=np.array(NAMES))
    heading = "machine," + ",".join(f"w{place}" for place in range(4))
    for name, half in (("first", first), ("second", second)):
        rows = [f"{label}," + ",".join(map(repr, row.tolist())) for label, row in zip(NAMES, half, strict=True)]
        Path(f"{name}-titled.csv").write_text("\n".join([heading, *rows]))
        Path(f"{name}-named.csv").write_text("\n".join(rows))
        Path(f"{name}-index.csv").write_text("\n".join([",0,1,2,3", *rows]))  # as pandas writes it
    expected = [NAMES[row] for row in BYZANTINE]
    calls = [("first.npy", "second.npy", "--names", "names.txt"), ("both.npz",)]
    calls += [(f"first-{kind}.csv", f"second-{kind}.csv") for kind in ("titled", "named", "index")]
    for words in calls:
        verdict = judge(*words)
        assert verdict["flagged_names"] == expected, words
        assert by_row(verdict, "machine") == NAMES
        assert by_row(verdict, "score") == identify(first, second).scores.tolist()
    assert judge("first.npy", "second.npy")["flagged_names"] == [str(row) for row in BYZANTINE]


def test_a_line_of_headings_without_names(halves: Pair) -> None:
    for name, half in zip(("first", "second"), halves, strict=True):
        np.savetxt(f"{name}.csv", half, delimiter=",", fmt="%.17g", header="a,b,c,d", comments="")
    verdict = judge("first.csv", "second.csv")
    assert verdict["flagged"] == BYZANTINE
    assert (verdict["n"], verdict["d"]) == (30, 4)


def test_rows_are_brought_together_by_name(halves: Pair) -> None:
    first, second = halves
    order = np.random.default_rng(1).permutation(30)
    for name, half, rows in (("first", first, range(30)), ("second", second, order)):
        Path(f"{name}.csv").write_text("\n".join(f"{NAMES[row]},{','.join(map(repr, half[row].tolist()))}" for row in rows))
    verdict = judge("first.csv", "second.csv")
    assert by_row(verdict, "score") == identify(first, second).scores.tolist()
    note = "rows of second.csv were brought into the order of first.csv by name"
    assert (verdict["warnings"], verdict["notes"]) == ([], [note])
    assert bymi("detect", "first.csv", "second.csv").out.startswith(f"Note: {note}\n")
    text = Path("second.csv").read_text()
    Path("second.csv").write_text(text.replace("host-7,", "host-77,"))
    assert mistake("detect", "first.csv", "second.csv").startswith(
        "first.csv and second.csv must name the same machines: 'host-7' is in one of them only"
    )


@pytest.mark.parametrize("profile", ["hardened", "published"])
def test_machines_that_are_not_finite_are_flagged_and_the_rest_judged(halves: Pair, profile: str) -> None:
    first, second = halves
    first[0, 1], second[5, 2] = np.nan, np.inf
    np.save("first.npy", first)
    np.save("second.npy", second)
    verdict = judge("first.npy", "second.npy", "--profile", profile)
    reasons = by_row(verdict, "reason")
    assert (reasons[0], reasons[5]) == ("not finite", "not finite")
    assert {0, 5, *BYZANTINE} <= set(verdict["flagged"])
    assert "NaN or Inf" in bymi("detect", "first.npy", "second.npy").out
    lines = Path("first.csv").read_text().splitlines()
    lines[0] = "1.0,,2.0,3.0"  # a missing number
    Path("first.csv").write_text("\n".join(lines))
    assert by_row(judge("first.csv", "second.csv"), "reason")[0] == "not finite"


def test_a_large_matrix_needs_little_more_than_itself() -> None:
    """64 x 100,000 in float32, 51 MB in both files: at the peak no more than 60 MB above them and what a small call needs.

    For 64 x 10^6 that would be 600 MB; measured were 8 MB in two .npy files, and 490 MB where a row had to be left out.
    """
    random = np.random.default_rng(0)
    for name in ("large-1.npy", "large-2.npy"):
        np.save(name, random.standard_normal((64, 100_000), dtype=np.float32))
    code = """
import resource
from tests.commands import bymi
for names in (("first.npy", "second.npy"), ("large-1.npy", "large-2.npy")):
    assert bymi("detect", *names).code == 0
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    root = Path(__file__).parents[1]
    paths = os.pathsep.join([str(root), str(root / "src")])
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": paths}
    )
    small, large = (int(word) / 1024 for word in told.stdout.split())
    assert large - small < 51 + 60


# Options


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("centre", CENTRES)
def test_every_centre_and_scale_is_the_one_of_the_library(halves: Pair, centre: str, scale: str) -> None:
    verdict = judge("first.npy", "second.npy", "--profile", "published", "--centre", centre, "--scale", scale)
    expected = identify(*halves, profile="published", centre=CENTRES[centre](), scale=SCALES[scale]())
    assert by_row(verdict, "score") == expected.scores.tolist()
    assert set(BYZANTINE) <= set(verdict["flagged"])


def test_level_offset_and_cross_fit_reach_the_threshold(halves: Pair) -> None:
    for level, offset, fit in ((0.05, 0, True), (0.2, 1, False), (0.6, 0, False), (0.1, 1, True)):
        words = ("--profile", "published", "--fdr-level", level, "--offset", offset, f"--{'' if fit else 'no-'}cross-fit")
        verdict = judge("first.npy", "second.npy", *words)
        expected = identify(*halves, profile="published", fdr_level=level, offset=offset, cross_fit=fit)
        limit = float(expected.threshold)
        assert verdict["threshold"] == (limit if np.isfinite(limit) else None)
        assert verdict["flagged"] == expected.flagged.nonzero().flatten().tolist()
        assert (verdict["level"], verdict["offset"], verdict["cross_fit"]) == (level, offset, fit)
    # With offset 1 and level 0.1, ten machines must stand out before one is flagged; here five do.
    assert (verdict["threshold"], verdict["flagged"]) == (None, [])


def test_cross_fit_is_the_default_of_the_published_profile(halves: Pair) -> None:
    verdict = judge("first.npy", "second.npy", "--profile", "published")
    assert verdict["cross_fit"] is True
    assert by_row(verdict, "score") == identify(*halves, profile="published", cross_fit=True).scores.tolist()


def test_the_help_says_what_the_exact_form_of_the_paper_costs() -> None:
    words = bymi("detect", "--help").words
    assert "--no-cross-fit" in words
    assert "false discovery rate grows from" in words


def test_the_answer_in_json_is_complete(halves: Pair) -> None:
    verdict = judge("first.npy", "second.npy")
    head = {
        key: verdict[key]
        for key in ("version", "profile", "level", "n", "d", "offset", "cross_fit", "warnings", "notes", "advice")
    }
    assert head == {
        "version": library.__version__,
        "profile": "hardened",
        "level": 0.2,
        "n": 30,
        "d": 4,
        "offset": None,
        "cross_fit": None,
        "warnings": [],
        "notes": [],
        "advice": [],
    }
    assert len(verdict["machines"]) == 30
    for machine in verdict["machines"]:
        assert (machine["verdict"] == "flagged") == (machine["row"] in BYZANTINE) == (machine["reason"] is not None)
        assert (machine["explanation"] != "") == (machine["row"] in BYZANTINE)
        assert 0 <= machine["p"] <= 1
    assert [machine["row"] for machine in judge("first.npy", "second.npy", "--flagged-only")["machines"]] == [
        machine["row"] for machine in verdict["machines"][:5]
    ]


def test_the_table_is_that_of_the_verdict(halves: Pair) -> None:
    for words, how in (((), {}), (("--profile", "published"), {"profile": "published"})):
        expected = identify(*halves, **how)
        assert bymi("detect", "first.npy", "second.npy", *words).out == expected.table() + "\n"
        shown = bymi("detect", "first.npy", "second.npy", *words, "--flagged-only").out
        assert shown == expected.table(flagged_only=True) + "\n"


def test_an_exit_code_tells_whether_a_machine_is_flagged(halves: Pair) -> None:
    assert bymi("detect", "first.npy", "second.npy").code == 0
    answer = bymi("detect", "first.npy", "second.npy", "--fail-if-flagged")
    assert (answer.code, answer.err) == (7, "")
    assert "5 of 30 machines flagged" in answer.out
    assert bymi("detect", "first.npy", "second.npy", "--fail-if-flagged", "--json").code == 7
    for name, half in zip(("first", "second"), halves, strict=True):
        half[BYZANTINE] -= 8
        np.save(f"{name}.npy", half)
    assert bymi("detect", "first.npy", "second.npy", "--fail-if-flagged").code == 0


@pytest.mark.parametrize("profile", ["hardened", "published"])
@pytest.mark.parametrize("name", ["scores.png", "scores.svg"])
def test_a_figure_of_the_scores(halves: Pair, profile: str, name: str) -> None:
    first, _ = halves
    first[0, 0] = np.nan  # one machine without a score
    np.save("first.npy", first)
    Path("names.txt").write_text("\n".join([*NAMES[:-1], "a $name$ with <marks> & far too many letters in it"]))
    answer = bymi("detect", "first.npy", "second.npy", "--profile", profile, "--names", "names.txt", "--plot", name)
    assert answer.code == 0
    assert answer.out.splitlines()[-1] == f"Figure: {name}"
    are_pictures(Path(name))
    if name.endswith(".svg"):
        text = Path(name).read_text()
        assert "noise units" in text
        assert "threshold" in text
        assert "no score: not finite" in text


def test_a_figure_of_nothing_is_no_failure() -> None:
    np.save("ones.npy", np.ones((6, 3)))
    np.save("twos.npy", 2 * np.ones((6, 3)))
    assert bymi("detect", "ones.npy", "twos.npy", "--plot", "same.png").code == 0
    are_pictures(Path("same.png"))
    assert mistake("detect", "first.npy", "second.npy", "--plot", "here.pdf").startswith("--plot: got 'here.pdf', allowed: ")
    answer = bymi("detect", "first.npy", "second.npy", "--plot", "no/here.png")
    assert (answer.code, answer.err) == (9, "bymi: cannot write no/here.png: No such file or directory\n")


# What is said first


def test_the_same_file_twice_is_refused() -> None:
    for profile in ("hardened", "published"):
        line = mistake("detect", "first.npy", "first.npy", "--profile", profile, "--fail-if-flagged")
        assert line.startswith("first and second are the same in all rows")


def test_nobody_qualifies_among_equal_machines() -> None:
    np.save("ones.npy", np.ones((6, 3)))
    np.save("twos.npy", 2 * np.ones((6, 3)))
    verdict = judge("ones.npy", "twos.npy", "--profile", "published")
    assert (by_row(verdict, "score"), verdict["threshold"], verdict["flagged"]) == ([0.0] * 6, None, [])
    answer = bymi("detect", "ones.npy", "twos.npy", "--profile", "published")
    assert "0 of 6 machines flagged in 3 dimensions" in answer.words
    assert "no threshold qualifies" in answer.words


def test_a_flagged_majority_is_the_first_line(halves: Pair) -> None:
    for name, half in zip(("first", "second"), halves, strict=True):
        half[:17] += 100
        np.save(f"{name}.npy", half)
    answer = bymi("detect", "first.npy", "second.npy", "--profile", "published")
    assert "machines are flagged; no method can tell which half is good" in answer.out.splitlines()[0]


def test_too_few_machines_are_the_first_lines_with_advice(halves: Pair) -> None:
    for name, half in zip(("first", "second"), halves, strict=True):
        np.save(f"{name}.npy", half[:4])
    answer = bymi("detect", "first.npy", "second.npy")
    lines = answer.out.splitlines()
    assert lines[0] == "Warning: 4 machines are fewer than 1 / level = 5: too few for a level of 0.2"
    assert lines[1].startswith(
        "Advice: with 4 machines, a fifth of them 30 standard errors off, this profile finds all of them in "
    )
    verdict = judge("first.npy", "second.npy")
    assert [f"Advice: {line}" for line in verdict["advice"]] == [line for line in lines if line.startswith("Advice")]
    assert judge("first.npy", "second.npy", "--profile", "published", "--offset", "1")["advice"] != verdict["advice"]


# Mistakes


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["missing.npy", "second.npy"], "cannot read missing.npy: No such file or directory"),
        (["first.npy", "missing.csv"], "cannot read missing.csv: No such file or directory"),
        (["first.txt", "second.npy"], "first.txt: got a .txt file, allowed: .npy, .npz, .csv, .pt, .safetensors"),
        (["first", "second.npy"], "first: got a nameless file, allowed: .npy, .npz, .csv"),
        (["first.npy"], "first.npy: it holds one matrix, need two: give a second file, or arrays named first and second"),
        (["first.npz"], "first.npz: it holds one matrix, need two"),
        ([], "Missing argument"),
        (["--fdr-level", "0"], "fdr_level: got 0.0, allowed: strictly between 0 and 1"),
        (["--fdr-level", "1"], "fdr_level: got 1.0, allowed: strictly between 0 and 1"),
        (["--fdr-level", "-1"], "fdr_level: got -1.0, allowed: strictly between 0 and 1"),
        (["--fdr-level", "nan"], "fdr_level: got nan, allowed: a finite number"),
        (["--fdr-level", "low"], "Invalid value for '--fdr-level'"),
        (["--profile", "paper"], "profile: got 'paper', allowed: hardened, published"),
        (["--profile", "published", "--offset", "2"], "offset: got 2, allowed: 0 (paper) or 1"),
        (["--offset", "1"], "offset: got 1, allowed: with profile published only"),
        (["--no-cross-fit"], "cross_fit: got False, allowed: with profile published only"),
        (["--centre", "medain"], "--centre: got 'medain'; did you mean 'median'?; allowed: filtering, "),
        (["--centre", "trimmed_mean"], "--centre: got 'trimmed_mean'; did you mean 'trimmed-mean'?"),
        (["--scale", "identty"], "--scale: got 'identty'; did you mean 'identity'?; allowed: identity, pca"),
        (["--names", "missing.txt"], "cannot read missing.txt: No such file or directory"),
        (["--names", "first.npy"], "first.npy: is not a text file in UTF-8"),
        (["--names", "few.txt"], "names: got '2 names', allowed: one for each of 30 machines"),
        (["--names", "twice.txt"], "names: got ['a'], allowed: a different name for each machine"),
        (["--alpha", "0.1"], "No such option: --alpha"),
    ],
)
def test_wrong_words_are_one_line(words: list[str], expected: str) -> None:
    Path("few.txt").write_text("a\nb\n")
    Path("twice.txt").write_text("a\n" * 30)
    files = ["first.npy", "second.npy"] if words and words[0].startswith("--") else []
    assert mistake("detect", *files, *words).startswith(expected)


def array(values: Any) -> Callable[[Path], None]:
    return lambda path: np.save(path, values)


def content(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


def header(text: bytes) -> Callable[[Path], None]:
    """An .npy file that is nothing but its header."""
    line = text.ljust(117) + b"\n"
    return content(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line)


def tensors(header: dict[str, Any], data: bytes = b"") -> Callable[[Path], None]:
    text = json.dumps(header).encode()
    return content(len(text).to_bytes(8, "little") + text + data)


def saved(thing: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(thing, path)


def two_arrays(path: Path) -> None:
    np.savez(path, one=np.ones((3, 2)), other=np.ones((3, 2)))


def damaged(path: Path) -> None:
    """A compressed archive with a scratch in the middle of its data."""
    np.savez_compressed(path, np.random.default_rng(0).standard_normal((30, 4)))
    data = bytearray(path.read_bytes())
    data[120:200] = b"\xff" * 80
    path.write_bytes(data)


def many_files(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(200):
            archive.writestr(f"{number}.npy", b"")


ENTRY = {"dtype": "F64", "shape": [30, 4], "data_offsets": [0, 960]}


@pytest.mark.parametrize(
    ("name", "make", "expected"),
    [
        ("bad.npy", array(np.ones((10, 4))), "first and second must have one shape, got [10, 4] and [30, 4]"),
        ("bad.npy", array(np.ones((30, 5))), "first and second must have one shape, got [30, 5] and [30, 4]"),
        ("bad.npy", array(np.ones(30)), "bad.npy: got an array of shape [30], need a matrix [n, d]"),
        ("bad.npy", array(np.ones((2, 30, 4))), "bad.npy: got an array of shape [2, 30, 4], need a matrix [n, d]"),
        ("bad.npy", array(np.ones((1, 4))), "first: got shape [1, 4], need a matrix [n, d] with n >= 3"),
        ("bad.npy", array(np.ones((30, 0))), "first: got shape [30, 0], need a matrix [n, d] with n >= 3 and d >= 1"),
        ("bad.npy", array(np.full((30, 4), np.nan)), "got 0 of 30 machines with finite values"),
        ("bad.npy", array(np.array([["1", "x"]])), "bad.npy is not a readable .npy matrix: numbers of type <U1, allowed: real"),
        ("bad.npy", content(b""), "bad.npy is not a readable .npy matrix: "),
        ("bad.npy", content(b"not an array"), "bad.npy is not a readable .npy matrix: "),
        ("bad.npy", Path.mkdir, "cannot read bad.npy: not a regular file"),
        ("bad.npy", os.mkfifo, "cannot read bad.npy: not a regular file"),
        ("bad.npz", content(b""), "bad.npz is not a readable .npz matrix: "),
        ("bad.npz", content(b"PK\x03\x04 no archive"), "bad.npz is not a readable .npz matrix: "),
        ("bad.npz", two_arrays, "bad.npz: it holds 2 arrays (one, other), need exactly one beside another file"),
        ("bad.npz", many_files, "bad.npz is not a readable .npz matrix: it holds 200 files, allowed: up to 100"),
        ("bad.csv", content(b""), "bad.csv is not a readable .csv matrix: it is empty"),
        ("bad.csv", content(b"\n \n"), "bad.csv is not a readable .csv matrix: it is empty"),
        ("bad.csv", content(b"a,b\n"), "bad.csv is not a readable .csv matrix: it has a heading and no rows"),
        ("bad.csv", content(b"1,2\n3,x\n"), "bad.csv is not a readable .csv matrix: could not convert string 'x'"),
        ("bad.csv", content(b"1,2\n3\n"), "bad.csv is not a readable .csv matrix: row 2 has 1 number, expected 2 as in row 1"),
        (
            "bad.csv",
            content(b"name,a,b\nx,1,2\ny,1,2,3\n"),
            "bad.csv is not a readable .csv matrix: row 2 has 3 numbers, expected 2",
        ),
        ("bad.csv", content(b"\xff\xfe\x00"), "bad.csv is not a readable .csv matrix: "),
        ("bad.npz", damaged, "bad.npz is not a readable .npz matrix: "),
        ("bad.npy", header(b"{{{{"), "bad.npy is not a readable .npy matrix: "),
        (
            "bad.npy",
            header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999, 9999), }"),
            "bad.npy is not a readable .npy matrix: it has 0 bytes of data",
        ),
        ("bad.npy", array(np.ones((30, 4)) * 1j), "bad.npy is not a readable .npy matrix: numbers of type complex128"),
        ("bad.csv", content(b"# only a comment\n"), "bad.csv is not a readable .csv matrix: it is empty"),
        ("bad.safetensors", content(b""), "bad.safetensors is not a readable .safetensors matrix: it is cut short"),
        ("bad.safetensors", content(b"\xff" * 20), "bad.safetensors is not a readable .safetensors matrix: a header of 1844"),
        (
            "bad.safetensors",
            content(b"\x04" + b"\0" * 7 + b"[[]]"),
            "bad.safetensors is not a readable .safetensors matrix: its",
        ),
        (
            "bad.safetensors",
            tensors({"a": ENTRY}),
            "bad.safetensors is not a readable .safetensors matrix: a does not lie where",
        ),
        ("bad.safetensors", tensors({"a": 3}), "bad.safetensors is not a readable .safetensors matrix: a has no type"),
        (
            "bad.safetensors",
            tensors({"a": {**ENTRY, "shape": [-1, 4]}}, b"\0" * 960),
            "bad.safetensors is not a readable .safetensors matrix: a has no shape",
        ),
        ("bad.safetensors", tensors({}), "bad.safetensors is not a readable .safetensors matrix: it holds no arrays"),
        ("bad.pt", content(b"not a zip"), "bad.pt is not a readable .pt matrix: File is not a zip file"),
        ("bad.pt", saved([1, 2]), "bad.pt is not a readable .pt matrix: it holds neither a tensor nor a dictionary of tensors"),
        ("bad.pt", saved(torch.ones(3)), "bad.pt: got an array of shape [3], need a matrix [n, d]"),
    ],
)
def test_bad_files_are_one_line(name: str, make: Callable[[Path], Any], expected: str) -> None:
    make(Path(name))
    assert mistake("detect", name, "second.npy").startswith(expected)


@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_archives_that_unpack_to_too_much_are_refused_by_their_directory(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes that the directory states count, before anything is unpacked."""
    monkeypatch.setattr(read_matrices, "LIMIT", 1_000_000)
    packed = io.BytesIO()
    np.lib.format.write_array(packed, np.zeros((30, 5_000)))
    with zipfile.ZipFile(f"bomb{suffix}", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("array.npy", packed.getvalue())
    assert Path(f"bomb{suffix}").stat().st_size < 10_000
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("it was unpacked"))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was unpacked"))
    assert mistake("detect", f"bomb{suffix}", "second.npy") == (
        f"bomb{suffix} is not a readable {suffix} matrix: it unpacks to 1200128 bytes, allowed: up to 1000000"
    )


def test_a_file_beyond_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_matrices, "LIMIT", 1_000)
    assert mistake("detect", "first.npy", "second.npy") == "first.npy: got 1088 bytes, allowed: up to 1000"


def test_a_directory_that_lies_about_sizes_gives_no_more_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = io.BytesIO()
    np.lib.format.write_array(packed, np.zeros((30, 5_000)))
    with zipfile.ZipFile("wrong-size.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("array.npy", packed.getvalue())
    data = Path("wrong-size.npz").read_bytes()
    Path("wrong-size.npz").write_bytes(data.replace(struct.pack("<I", 1_200_128), struct.pack("<I", 2_000)))
    assert mistake("detect", "wrong-size.npz", "second.npy").startswith("wrong-size.npz is not a readable .npz matrix: ")


@pytest.mark.parametrize("centre", CENTRES)
def test_enormous_values_get_a_verdict_or_one_line(halves: Pair, centre: str) -> None:
    for scale in (1e90, 1e200):
        for name, half in zip(("first", "second"), halves, strict=True):
            np.save(f"{name}.npy", half * scale)
        words = ("first.npy", "second.npy", "--profile", "published", "--centre", centre)
        if bymi("detect", *words).code == 0:
            assert set(BYZANTINE) <= set(judge(*words)["flagged"])
        else:
            mistake("detect", *words)


class Bomb:
    """Unpickling it makes a folder: a stand-in for anything that a stranger's file could do."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("name", ["bomb.npy", "bomb.npz", "bomb.pt"])
def test_nothing_is_ever_unpickled(tmp_path: Path, name: str) -> None:
    bomb = np.array([[Bomb(), 1.0], [2.0, 3.0]], dtype=object)
    if name.endswith(".pt"):
        torch.save({"first": Bomb()}, name)
        expected = "bomb.pt is not a readable .pt matrix: Weights only load failed"
    else:
        (np.save if name.endswith(".npy") else np.savez)(name, bomb)
        expected = f"{name} is not a readable {name[-4:]} matrix: Object arrays cannot be loaded"
    assert mistake("detect", name, name).startswith(expected)
    assert not (tmp_path / "exploded").exists()
    if name.endswith(".pt"):
        torch.load(name, weights_only=False)
    else:
        np.load(name, allow_pickle=True)["arr_0" if name.endswith(".npz") else ...]
    assert (tmp_path / "exploded").exists(), "the file does explode where unpickling is allowed, so the test means something"
