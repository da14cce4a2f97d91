"""Policies of other systems, for comparison."""
