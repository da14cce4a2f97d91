"""hadard's side of Slurm; `submit`, `devcluster` and `lab` also run commands of their own."""
