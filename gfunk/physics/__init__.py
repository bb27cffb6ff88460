"""The truth: solvers."""
