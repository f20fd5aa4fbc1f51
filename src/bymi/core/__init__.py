"""The vocabulary of the library: vectors, graphs, messages, inboxes, networks. Imports nothing else of bymi."""
