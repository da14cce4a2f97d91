"""Policy `hadare`: training jobs forked into copies."""
