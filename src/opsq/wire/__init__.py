"""The protocol: how bytes become messages (`frames`) and what the messages are (`messages`). No I/O, no decisions."""
