"""Answers to users' queries, and the check that all tables agree."""
