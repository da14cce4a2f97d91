"""Workloads that others wrote: Gavel's traces, ElasticFlow's, Slurm's own history."""
