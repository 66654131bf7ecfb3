"""The other end of the wire: connections, producers, consumers. Importing the package loads none of its modules."""
