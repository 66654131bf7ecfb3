"""Content over HTTP: bodies on their way into the store, and results on their way out, in constant memory.

It must not know paths or documents: the JSON API declares them.
"""
