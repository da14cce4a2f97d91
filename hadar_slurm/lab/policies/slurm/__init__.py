"""Policy `slurm`: an unmodified Slurm that is set up well, and users who choose as they do."""
