"""Programs of the small simulator: each returns its solver."""

SCIPY = "SCIPY"


class Problem:
    def solve(self, solver, scipy_options=None):
        return solver, scipy_options
