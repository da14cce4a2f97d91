"""How the runs of a comparison are run: in processes of this machine, or as Slurm's job arrays."""
