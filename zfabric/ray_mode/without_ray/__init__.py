"""Ray's libraries without an installed Ray: importable modules with unusable names."""
