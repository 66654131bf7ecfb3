"""Spark sessions that suit opsq, and the Java they run on."""
