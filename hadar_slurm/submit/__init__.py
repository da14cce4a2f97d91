"""From a user's command line to the exact sbatch call."""
