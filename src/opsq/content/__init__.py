"""The bytes of chunks: cut an input, keep it in a store, read chunks by range, join results.

Import the modules by name: nothing is loaded here, so that reading one local chunk never pays for object stores.

- `splitter`, `record_boundaries`: where chunks and records (lines, CSV records) end. `input_chunks`: cuts an input, and
  plans a dry run.
- `content_writer`: input → store; `segments`: a long stream → several contents; `multipart`: one content from many
  processes.
- `manifest`: the description that travels with a submission (`Content`). `chunk_reader`: one chunk, or the chunks of a
  block.
- `result_objects`: large results → store. `result_joiner`: results → one output.
- `content_store`: the interface of a store; `store_kinds` opens a `local_store` or an `object_store`; `file_io`: plain
  files.
"""
