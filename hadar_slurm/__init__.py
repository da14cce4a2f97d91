"""Heterogeneity-aware GPU scheduling for an unmodified Slurm."""

__version__ = "0.2.0"
