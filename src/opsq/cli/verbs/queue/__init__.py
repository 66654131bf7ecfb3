"""List, create, show or remove the queues of records that a gateway serves."""
