"""Jobs in the order in which they came, each on the first GPU type with room."""


class GavelPolicy:
    def __init__(self, interval, policy="max_sum_throughput_perf"):
        self.interval = interval

    def populate_valid_configs(self, num_nodes, gpus_per_node, max_physical_nodes=None):
        self.free = {k: [gpus_per_node[k]] * num_nodes[k] for k in num_nodes}

    def optimize(self, jobs, nodes, held):
        left, found = {k: list(v) for k, v in self.free.items()}, {}
        for name, job in jobs.items():
            for gpu_type, by_node in left.items():
                if sum(by_node) >= job.scale_factor:
                    found[name] = (gpu_type, [])
                    while len(found[name][1]) < job.scale_factor:
                        node = next(n for n, gpus in enumerate(by_node) if gpus)
                        by_node[node] -= 1
                        found[name][1].append(node)
                    break
        return found
