"""Events for export."""
