"""What hadar gains over plain Slurm, how certain that is, and who loses: for people who decide."""
