"""The demo: one workload on a real local Slurm, first without and then with hadard."""
