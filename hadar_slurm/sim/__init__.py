"""A cluster in virtual time behind the same Backend as a real Slurm."""
