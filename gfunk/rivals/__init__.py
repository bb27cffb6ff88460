"""One sheet of tissue solved by gfunk and by other solvers: scripts, each run by the interpreter that has its solver."""
