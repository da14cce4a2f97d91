"""How the goodput of a job of the small simulator is computed."""

import numpy as np


class GoodputFunction:
    def __init__(self, perf_params, grad_params, init_batch_size):
        assert len(perf_params) == 7
        assert len(grad_params) == 2

    def throughput(self, num_nodes, num_replicas, atomic_bsz, accum_steps):
        raise AssertionError("the small simulator has no models of throughput")

    def efficiency(self, batch_size):
        raise AssertionError("nor of gradients")

    def optimize(
        self, num_nodes, num_replicas, max_batch_size, atomic_bsz_range, accumulation=False
    ):
        least, most = atomic_bsz_range
        atomic = np.array([[size] for size in (64, 128) if least <= size <= most])
        sizes = np.array([num_replicas])
        goodput = self.throughput(num_nodes, sizes, atomic, np.zeros_like(atomic))
        goodput *= self.efficiency(num_replicas * atomic)
        best = goodput.argmax()
        return goodput.flat[best], atomic.flat[best], 0
