"""Statistics of usage."""
