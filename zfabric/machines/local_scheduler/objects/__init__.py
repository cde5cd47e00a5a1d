"""Values: who needs them, where they are, and streams."""
