"""Tables and figures. A report reads run folders and nothing else."""
