"""The command line: one module for each group of commands. Only this package imports click and rich."""
