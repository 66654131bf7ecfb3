"""What drives the real engine in tests: a rig with simulated clocks, crashes and failed commits, and a naive model of what is right."""
