"""List the tokens that let clients in over TCP, make one, or revoke it."""
