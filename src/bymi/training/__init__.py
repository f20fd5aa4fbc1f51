"""The method: settings of a run, its three phases, and the state between rounds."""
