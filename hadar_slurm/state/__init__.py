"""Files in `state_dir` and `spool_dir`: heartbeat, lease, locks, reports, assignments."""
