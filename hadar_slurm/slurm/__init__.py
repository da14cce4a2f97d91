"""Everything that talks to a real Slurm; the only package that runs commands."""
