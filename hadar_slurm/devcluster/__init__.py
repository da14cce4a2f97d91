"""A real Slurm on loopback with pretended GPUs, for trials and tests."""
