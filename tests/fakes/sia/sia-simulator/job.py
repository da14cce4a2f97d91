"""A job of the small simulator."""

from applications import SPEEDS, STEPS, Application


def fit_perf_params(*arrays):
    raise AssertionError("jobs that keep their batch sizes need no models of throughput")


class Job:
    def __init__(self, row):
        self.name, self.submission_time = row["name"], float(row["time"])
        self.application = row["application"]
        self.scale_factor = int(row["num_replicas"])
        self.target_batch_size = int(row["batch_size"])
        self.applications = {
            gpu_type: Application(self.application, gpu_type) for gpu_type in ("fast", "slow")
        }
        self.reference_app, self.completion_epoch = self.applications["fast"], 9
        self.total_steps = STEPS[self.application]
        self.remain_steps = float(self.total_steps)
        self.rescale_time, self.slowdown_factor, self.age = 30.0, 0.5, 0.0
        self.enable_bsz_tuning, self.atomic_bsz, self.updates = True, 0, 0
        self.current_cluster = None
        self.held, self.wait_s, self.num_restarts, self.completion_time = (
            (None, ()),
            0.0,
            None,
            None,
        )

    def step(self, now_s, seconds):
        gpu_type, nodes = self.held
        if gpu_type is None or self.completion_time is not None:
            return
        idle_s = min(self.wait_s, seconds)
        self.wait_s -= idle_s
        placement = tuple(nodes.count(node) for node in sorted(set(nodes)))
        application = self.applications[gpu_type]
        speed = application.get_throughput_with_accum(placement, 1) * self.slowdown_factor
        speed *= self.atomic_bsz / 64
        needed_s = self.remain_steps / speed
        if needed_s <= seconds - idle_s:
            self.completion_time = now_s + idle_s + needed_s
        self.remain_steps = max(1.0, self.remain_steps - speed * (seconds - idle_s))
        self.update_local_bsz(placement)

    @property
    def progress(self):
        return self.total_steps - self.remain_steps

    @property
    def epoch(self):
        return min(9, int(10 * self.progress / self.total_steps))

    def update_local_bsz(self, placement):
        self.atomic_bsz = 128 if self.enable_bsz_tuning else 64
        self.updates += 1

    def hold(self, held):
        if held != self.held and held[0] is not None:
            self.num_restarts = 0 if self.num_restarts is None else self.num_restarts + 1
            self.wait_s = self.rescale_time
            self.current_cluster, nodes = held
            self.update_local_bsz(tuple(nodes.count(node) for node in sorted(set(nodes))))
            if self.fits and not self.enable_bsz_tuning:
                fit_perf_params()
        self.held = held

    fits = True


assert set(SPEEDS) == set(STEPS)
