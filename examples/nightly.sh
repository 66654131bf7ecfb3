#!/bin/sh
# A cron job: processes the files in a folder, one chunk per file, and never in two runs at once.
#
# cron provides almost no environment, and this needs none: no HOME, no terminal, a short PATH. cron mails standard
# error. A line for `crontab -e`, to run at 02:15 each night:
#
#   15 2 * * *  /usr/local/share/opsq/nightly.sh /var/spool/reports /var/spool/reports.txt
set -eu
PATH=${OPSQ_BIN:-/usr/local/bin}:/usr/bin:/bin
export PATH

opsq start
# While the submission of an earlier night is unfinished, --unique prints its id and submits nothing.
id=$(opsq submit --unique nightly --expires 20h --per-file "$1/*.csv")
opsq consume --submission "$id" --until-empty -- sort -u # and nothing else in the queue
opsq wait "$id"
opsq results --output "$2" "$id" # written to a temporary file, then renamed: readers never see half of it
opsq rm "$id"
