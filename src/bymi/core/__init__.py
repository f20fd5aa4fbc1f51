"""Vectors, graphs, messages, inboxes and networks: the types that all other packages use. Imports no other package of bymi."""
