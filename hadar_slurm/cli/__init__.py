"""The three commands: hadar, hadard and hadar-sbatch."""
