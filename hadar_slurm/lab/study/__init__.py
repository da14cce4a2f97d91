"""Measuring policies against each other: runs, bounds, comparisons, reports."""
