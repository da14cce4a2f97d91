"""What the adapters for trainers' loops share."""
