"""Where a run happens: the nodes of a graph over many processes under torchrun."""
