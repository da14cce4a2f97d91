"""The commands for what hadard learns: speeds, learn."""
