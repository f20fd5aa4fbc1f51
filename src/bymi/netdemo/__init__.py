"""A network of real nodes on this machine, to try it out: keys, roster, processes, and Byzantine nodes as another program."""
