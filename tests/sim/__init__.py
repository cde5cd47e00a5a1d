"""The simulator: a deterministic shell around the machines that the runtime uses."""
