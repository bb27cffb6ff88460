"""Meshes users bring, read and mended; what we make, written for the tools they use."""
