"""Our side of the benchmarks: a private daemon, a bare client of its protocol, and the loads that rows are made of.

Nothing here measures a rival or judges a number.
"""
