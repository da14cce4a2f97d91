"""How Slurm is asked and told: commands, pyslurm, and their output parsed."""
