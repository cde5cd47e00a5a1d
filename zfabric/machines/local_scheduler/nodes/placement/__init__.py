"""When tasks leave this node, where they go, and how they come back."""
