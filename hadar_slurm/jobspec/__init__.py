"""The description of a job, from hadar-sbatch to hadard, and its estimated throughputs."""
