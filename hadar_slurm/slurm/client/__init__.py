"""Reads and changes Slurm by its commands and pyslurm, and parses their output."""
