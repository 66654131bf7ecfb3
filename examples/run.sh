#!/bin/sh
# Everything in one line: which paths of a web server fail most? Its logs, plain or compressed, are searched in
# parallel while they are still being unpacked.
#
#     ./run.sh access.log access.log.1.gz …
#
# Needs no daemon: opsq run starts one if none is running, and stops it. After an interruption, a stream starts over,
# except with --resume KEY; with files instead of -, the same line resumes where it stopped.
set -eu

failed=$(mktemp)
trap 'rm -f "$failed"' EXIT

gzip -cdf -- "$@" | opsq run --bytes 256K -o "$failed" - -- awk '$9 >= 500 { print $7 }'

sort "$failed" | uniq -c | sort -rn
