"""The small simulator: a round at a time."""

from types import SimpleNamespace

from gavel import GavelPolicy

NODES, GPUS = {"fast": 1, "slow": 3}, {"fast": 4, "slow": 4}


class Cluster:
    def __init__(self, jobs, policy):
        assert isinstance(policy, GavelPolicy)
        self.jobs, self.policy, self.now_s = jobs, policy, 0.0
        self.held, self.logs = {}, []
        policy.populate_valid_configs(NODES, GPUS, NODES)

    def disable_bsz_tuning(self):
        for job in self.jobs:
            job.enable_bsz_tuning = False

    def get_gavel_job_info(self, job):
        names = ("scale_factor", "submission_time", "age", "rescale_time", "total_steps")
        more = ("remain_steps", "target_batch_size", "applications", "slowdown_factor")
        return SimpleNamespace(**{name: getattr(job, name) for name in (*names, *more)})

    def step(self, seconds):
        for job in self.jobs:
            job.step(self.now_s, seconds)
        self.now_s += seconds
        jobs = {
            job.name: job
            for job in self.jobs
            if job.submission_time <= self.now_s and job.completion_time is None
        }
        for job in jobs.values():
            job.age = self.now_s - job.submission_time
        if jobs:
            infos = {name: self.get_gavel_job_info(job) for name, job in jobs.items()}
            before = {name: held for name, held in self.held.items() if name in jobs}
            self.held = self.policy.optimize(infos, {}, before)
            self.check()
            for job in jobs.values():
                job.hold(self.held.get(job.name, (None, ())))
        names = ("name", "submission_time", "completion_time", "num_restarts")
        self.logs.append(
            {"submitted_jobs": [{n: getattr(job, n) for n in names} for job in self.jobs]}
        )

    def check(self):
        used = {}
        sizes = {job.name: job.scale_factor for job in self.jobs}
        for name, (gpu_type, nodes) in self.held.items():
            assert len(nodes) == sizes[name], name
            for node in nodes:
                used[gpu_type, node] = used.get((gpu_type, node), 0) + 1
        assert all(n <= GPUS[k] and node < NODES[k] for (k, node), n in used.items()), used
