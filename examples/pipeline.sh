#!/bin/sh
# Shows a whole round from the shell: the ten most frequent words of some files, counted by several processes.
#
# Usage: pipeline.sh FILE...
set -eu

out=$(mktemp)
trap 'rm -f "$out"' EXIT

opsq start
id=$(opsq submit --bytes 64K -m job=words "$@")
trap 'opsq cancel "$id"; exit 130' INT TERM # whoever interrupts this wants no more of it

# Each chunk is the standard input of the pipe, and its output is the result. A program that fails is run again, at most
# five times; consume then ends with 1, and wait says the same below. Whatever else is in the queue is left alone.
opsq consume --submission "$id" --until-empty -- sh -c 'tr -cs "[:alpha:]" "\n" | tr "[:upper:]" "[:lower:]"' || true

if ! opsq wait "$id"; then
    opsq dead list "$id" >&2 # which chunks, and the tail of what their program said
    exit 1
fi

# Not `opsq results | sort`: the shell would not notice if results stopped half-way.
opsq results --output "$out" "$id"
opsq rm "$id"
sort "$out" | grep . | uniq -c | sort -k 1,1nr -k 2 | head -n 10
