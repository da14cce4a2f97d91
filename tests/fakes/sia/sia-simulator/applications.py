"""How fast the jobs of the small simulator train."""

SPEEDS = {"small": {"fast": 4.0, "slow": 1.0}, "large": {"fast": 3.0, "slow": 2.0}}
STEPS = {"small": 2000, "large": 9000}


class Application:
    def __init__(self, name, gpu_type):
        self.name, self.gpu_type = name, gpu_type

    def get_max_local_bsz(self, placement):
        return 64

    def get_throughput_with_accum(self, placement, batch_size):
        if self.get_max_local_bsz(list(placement)) < 1:
            return -1
        speed = SPEEDS[self.name][self.gpu_type] * sum(placement) / 4
        return batch_size * speed * (0.5 if len(placement) > 1 else 1.0)
