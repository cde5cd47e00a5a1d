"""Leaf values the machines are made of."""
