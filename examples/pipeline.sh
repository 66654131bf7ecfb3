#!/bin/sh
# Submit, consume and collect from the shell: the ten most frequent words of some files, counted in parallel.
#
# Usage: pipeline.sh FILE...
set -eu

out=$(mktemp)
trap 'rm -f "$out"' EXIT

opsq start
id=$(opsq submit --bytes 64K -m job=words "$@")
trap 'opsq cancel "$id"; exit 130' INT TERM # interrupting this script cancels the work

# Each chunk is the standard input of the pipe, and its output is the result. A program that fails is run again, at most
# five times; then consume exits with 1, and so does wait below. Other work in the queue is not touched.
opsq consume --submission "$id" --until-empty -- sh -c 'tr -cs "[:alpha:]" "\n" | tr "[:upper:]" "[:lower:]"' || true

if ! opsq wait "$id"; then
    opsq dead list "$id" >&2 # the dead chunks, with the last output of their program
    exit 1
fi

# Not `opsq results | sort`: the shell would not notice if results failed half-way.
opsq results --output "$out" "$id"
opsq rm "$id"
sort "$out" | grep . | uniq -c | sort -k 1,1nr -k 2 | head -n 10
