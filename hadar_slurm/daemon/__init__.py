"""hadard: its options, rounds, signals, heartbeat and notifications to systemd."""
