"""Placement groups: reservations, bundles, and tasks for them."""
