"""What drives the real engine in tests.

A rig with simulated clocks, crashes and failed commits, and a naive model of what is right.
"""
