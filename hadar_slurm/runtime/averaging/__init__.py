"""Steps, averaging intervals and parameters of a forked training."""
