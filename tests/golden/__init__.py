"""Golden runs: tiny runs whose numbers are stored, so that a change which is meant to change no number provably changes none.

`table` lists the runs and `forms` the ways to compute a round; `record` is what is stored of a run, `stored` reads, writes and
compares it. Also pinned: digests of recipes and studies (`specs`), names of random streams (`streams`), and two checkpoints
that must resume with the same numbers (`checkpoints`).

`make test` compares with what is stored (tests/test_golden.py). `make golden` stores all of it again and prints what changed.
"""
