"""Submissions that come by the clock."""
