"""Whether policy `slurm` decides as a real slurmctld: the same jobs on both, and the differences.

cd benchmarks
python -m slurm_fidelity draw               the lists of jobs, from seeds and ../../shared/data
python -m slurm_fidelity real NAME...       play lists on a local Slurm, in compressed time;
                                            --slurm 24.11: on that of the image of docker/up
                                            --steered: under hadard in mode steer
python -m slurm_fidelity judge              simulate what was played; write the page
python -m slurm_fidelity gains              hadar's gain, real and simulated; write its section
python -m slurm_fidelity histories          `hadar compare` on the plays; write its section
"""
