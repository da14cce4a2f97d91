"""How fast the jobs of the small simulator train."""

SPEEDS = {"small": {"fast": 4.0, "slow": 1.0}, "large": {"fast": 3.0, "slow": 2.0}}
STEPS = {"small": 2000, "large": 9000}


class Application:
    """Its steps are 64 samples a GPU, 4 GPUs; twice the samples take as long."""

    init_batch_size, min_local_bsz, max_batch_size = 256, 64, 4096

    def __init__(self, name, gpu_type):
        self.name, self.gpu_type = name, gpu_type

    def get_max_local_bsz(self, placement):
        return 128

    def get_throughput_with_accum(self, placement, batch_size):
        if self.get_max_local_bsz(list(placement)) < 1:
            return -1
        speed = SPEEDS[self.name][self.gpu_type] * sum(placement) / 4
        return batch_size * speed * (0.5 if len(placement) > 1 else 1.0)

    def get_throughput(self, placement, atomic_bsz):
        assert 64 <= atomic_bsz <= 128
        speed = self.get_throughput_with_accum(placement, 1)
        return sum(placement) / 4 / speed, 0.0

    def get_progress(self, epoch):
        return STEPS[self.name] * epoch / 10

    def get_grad_stats(self, batch_size, epoch):
        return 0.0, 1.0  # all samples are worth the same, at any batch size
