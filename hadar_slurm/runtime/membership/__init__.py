"""Which copies take part in a forked training, and where they run."""
