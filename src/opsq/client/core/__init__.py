"""What the blocking and the asyncio client share. No I/O but content."""
