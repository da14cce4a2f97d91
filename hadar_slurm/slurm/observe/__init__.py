"""What Slurm shows, made into the snapshot that a policy decides on."""
