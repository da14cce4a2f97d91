"""How a copy trains one averaging interval after the other."""
