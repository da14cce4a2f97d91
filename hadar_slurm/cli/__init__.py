"""The commands hadar and hadar-sbatch, as thin faces."""
