"""From a request to the description that hadard reads: each option once. Pure."""
