"""What leaves for other tools: networks, trajectories, and what exported networks need to be given."""
