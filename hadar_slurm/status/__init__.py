"""Answers to operators' and users' questions, from journal, heartbeat and, for a job, Slurm."""
