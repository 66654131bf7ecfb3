"""Print the tables of an outbox, through which work commits with your own transactions."""
