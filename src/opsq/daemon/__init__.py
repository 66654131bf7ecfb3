"""The process that owns a state folder: sockets, sessions, commits and its life from start to stop. It decides nothing about chunks.

- `lifecycle`: `start`, `stop`, `restart`, `run_foreground`. `doctor`: what is right and wrong with the surroundings.
- `server`: the daemon on its event loop. `session`: one connection. `commits`: group commit and checkpoints. `upkeep`: idle work.
- `sockets`, `tokens`, `logs`, `asking`: binding, permission over TCP, the log, one question to a running daemon.
"""
