"""Policies srsf and las: their order, their types, and the published-trace figures of such rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import ROUND, a_job, a_snapshot, placed_by, some_rates
from studies_data import peer_row, peer_specs

from hadar_slurm.policies.greedy import Greedy, las, remaining_service, srsf
from hadar_slurm.sim.cluster import parse_cluster
from hadar_slurm.study.experiment import Settings, run_experiment
