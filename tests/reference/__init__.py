"""Slow, literal transcriptions of the formulas in plain numpy, node by node, to compare the library with.

Nothing here imports the library: a mistake would have to be made twice, in two different ways, to stay unseen.
"""
