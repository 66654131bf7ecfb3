"""The bytes of chunks: cut an input, keep it in a store, read chunks by range, join results.

Import the modules by name; nothing is loaded here, so that who reads one local chunk never pays for object stores.

- `splitting`: where chunks end (`Splitting`). `writing`: input → store (`ContentWriter`, `plan`).
- `manifest`: the description that travels with a submission (`Content`).
- `reading`: one chunk, or the chunks of a block (`ChunkReader`).
- `results`: large results → store (`ResultWriter`). `joining`: results → one output (`join_results`, `atomic_output`).
- `store`: what the others ask of a store (`Store`, `open_store`); `local` and `objects` are the two kinds.
"""
