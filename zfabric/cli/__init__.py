"""The command line: one file a group of commands; the only importer of click and rich."""
