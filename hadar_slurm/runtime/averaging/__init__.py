"""How the parameters that copies of a forked training have trained become one."""
