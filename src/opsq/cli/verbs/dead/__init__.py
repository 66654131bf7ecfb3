"""List dead chunks, show everything about one, give them new attempts, or give up on them."""
