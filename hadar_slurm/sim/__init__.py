"""A simulated cluster with the same Backend interface as Slurm."""
