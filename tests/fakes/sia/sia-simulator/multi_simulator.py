"""The program of the small simulator, with the options of Sia's."""

import argparse
import csv
import json

import cvxpy
import job as jobs
from cluster import Cluster
from gavel import GavelPolicy

if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("workload")
    for name in ("policy", "policy_p_val", "mip_lambda_a", "mip_lambda_n", "output"):
        words.add_argument(f"--{name}")
    words.add_argument("--interval", type=int)
    words.add_argument("--project_throughputs", action="store_true")
    words.add_argument("--share_max_replicas", action="store_true")
    options = words.parse_args()
    with open(options.workload) as file:
        rows = list(csv.DictReader(file))
    if options.policy != "gavel":
        solver, limits = cvxpy.Problem().solve(solver="GLPK_MI")
        assert (solver, limits["mip_rel_gap"]) == (cvxpy.SCIPY, 1e-4)
    cluster = Cluster([jobs.Job(row) for row in rows], GavelPolicy(options.interval))
    for one in cluster.jobs:
        one.fits = options.policy == "gavel"
    if options.policy == "gavel":
        cluster.disable_bsz_tuning()
    while any(one.completion_time is None for one in cluster.jobs):
        cluster.step(options.interval)
        print("a table of the round")
    for one in cluster.jobs:
        most = 2 * (one.num_restarts + 1)
        assert one.enable_bsz_tuning or one.updates <= most, "a batch size is set without a change"
    with open(options.output, "w") as file:
        file.writelines(json.dumps(log) + "\n" for log in cluster.logs)
