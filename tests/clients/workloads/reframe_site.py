"""The site in ReFrame's configuration: one partition of the local cluster."""

site_configuration = {
    "systems": [
        {
            "name": "here",
            "hostnames": [".*"],
            "modules_system": "nomod",
            "partitions": [
                {
                    "name": "main",
                    "scheduler": "slurm",
                    "launcher": "srun",
                    "access": ["--account=local"],
                    "environs": ["builtin"],
                    "max_jobs": 8,
                    "sched_options": {"slurm_pending_job_reason_poll_freq": 1},
                }
            ],
        }
    ],
    "environments": [{"name": "builtin"}],
    "general": [{"remote_detect": False, "topology_prefix": "topology"}],
}
