"""What hadar-sbatch says of a job and hadard reads: its description and estimated throughputs."""
