"""The asyncio client: the names of the blocking one, awaited."""
