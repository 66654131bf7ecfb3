#!/bin/sh
# Shows a job for cron: what lies in a folder is worked off, a file a chunk, and never by two runs at once.
#
# cron gives almost no environment, and this needs none: no HOME, no terminal, a short PATH. Whatever is written to standard
# error is mailed by cron. A line for `crontab -e`, at a quarter past two each night:
#
#   15 2 * * *  /usr/local/share/opsq/nightly.sh /var/spool/reports /var/spool/reports.txt
set -eu
PATH=${OPSQ_BIN:-/usr/local/bin}:/usr/bin:/bin
export PATH

opsq start
# As long as the submission of another night is unfinished, --unique prints its id and submits nothing.
id=$(opsq submit --unique nightly --expires 20h --per-file "$1/*.csv")
opsq consume --submission "$id" --until-empty -- sort -u # nothing else that may be in the queue
opsq wait "$id"
opsq results --output "$2" "$id" # written beside it, then renamed: a reader never sees half of it
opsq rm "$id"
