"""What people and programs are shown: tables, progress, JSON documents, failures."""
