"""Answers to people, and the check that all tables agree."""
