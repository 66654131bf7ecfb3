"""The process that owns a state folder: sockets, connections, commits, and its life from start to stop.

It decides nothing about chunks.

- `lifecycle`: start, stop and restart, from outside. `daemon_process`: what the process opens, its signals, its end.
  `process_setup`: what it shares with a gateway.
- `server`: the daemon on its event loop. `session`: one connection, its heartbeats and back-pressure. `claims`: names
  held by one consumer.
- `committer`: group commit and checkpoints. `maintenance`: backup, vacuum, check. `housekeeping`: work while idle.
- `sockets`, `access_tokens`, `daemon_log`: listening, permission over TCP, the log. `control_connection`: one question
  to a running daemon.
- `temporary_daemon`: a daemon that ends with its last user. `doctor`: checks the surroundings.
"""
