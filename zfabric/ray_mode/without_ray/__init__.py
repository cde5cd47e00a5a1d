"""Ray's libraries where no Ray is installed: modules that programs of the core import, and whose names cannot be used."""
