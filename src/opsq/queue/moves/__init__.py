"""Submissions that move from one daemon to another: both sides of it."""
