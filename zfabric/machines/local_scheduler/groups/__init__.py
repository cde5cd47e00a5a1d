"""Placement groups: how they are reserved, what a node has of them, and how their tasks reach their bundles."""
