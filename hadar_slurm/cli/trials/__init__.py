"""Commands that start a Slurm of their own and measure on it."""
