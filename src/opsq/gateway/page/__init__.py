"""The page: what the queue does, as HTML that a browser shows, made here and whole without scripts.

Must not know other doors.
"""
