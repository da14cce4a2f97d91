"""What a training script imports: one copy of a forked job. The only package with torch."""
