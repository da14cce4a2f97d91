"""Holds, node lists, requeues, and the record of what hadard has changed."""
