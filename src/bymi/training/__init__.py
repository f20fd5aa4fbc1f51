"""The training method: settings of a run, its three phases, and the state carried between rounds."""
