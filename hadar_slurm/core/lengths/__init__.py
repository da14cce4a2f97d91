"""How long jobs train that do not say so: what is believed, and whether it is calibrated."""
