"""Workload traces: Gavel's, ElasticFlow's, and Slurm's accounting history."""
