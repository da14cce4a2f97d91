"""What hadard does besides scheduling: its signs of life, and its word to systemd."""
