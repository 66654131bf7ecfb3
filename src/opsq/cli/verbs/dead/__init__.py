"""List dead chunks, show all that is known of one, give them new attempts, or give them up."""
