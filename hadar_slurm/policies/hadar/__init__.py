"""Policy `hadar`, the default."""
