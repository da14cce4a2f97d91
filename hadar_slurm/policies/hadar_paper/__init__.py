"""Policy `hadar-paper`: the primal-dual scheduler of the paper."""
