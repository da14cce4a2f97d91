"""The test-bed of a shared site: jobs on a real Slurm, plain and with hadard, and their waits."""
