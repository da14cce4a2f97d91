"""A page and metrics from the journal, for people and for Prometheus: read-only."""
