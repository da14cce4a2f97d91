"""Builds snapshots for policies from the state of Slurm."""
