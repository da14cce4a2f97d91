"""Copies that train every batch together, each a share of it (docs/adr/0033)."""
