"""The experiments as data: every number with its source."""
