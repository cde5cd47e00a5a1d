"""Answers to queries, and the check of all tables."""
