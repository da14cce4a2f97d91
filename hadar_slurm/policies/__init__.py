"""Policies: from a Snapshot to a Plan, without I/O and clock."""
