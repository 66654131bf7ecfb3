"""Records over HTTP: one payload at a time into a queue and out of it, as in SuperQueue.

Must not know other doors. A queue is the metadata pair `queue=NAME`, and a record a chunk.
"""
