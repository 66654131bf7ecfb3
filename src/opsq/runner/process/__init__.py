"""Child processes: started, fed, captured, and ended as groups. Nothing here knows of chunks."""
