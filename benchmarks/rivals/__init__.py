"""The rivals that opsq is measured against: each in a file of its own, driven as well as we know how.

Nothing here imports opsq, so that no rival can be slowed down by us.
"""
