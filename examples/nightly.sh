#!/bin/sh
# A cron job: processes the files in a folder, one chunk per file, once a night whatever happens.
#
#   nightly.sh FOLDER OUTPUT-FOLDER     makes OUTPUT-FOLDER/2026-11-29.txt from FOLDER/*.csv
#
# Of two runs at once the second stands back. A night that is done is not done again, not even when the clocks are set
# back and cron starts the job twice. After a failure, a full disk or a reboot, the next run of the night continues.
#
# cron provides almost no environment, and this needs none: no HOME, no terminal, a short PATH. What your own job will
# lack, `opsq doctor --cron PROGRAM...` tells. cron mails what a job prints; this prints nothing unless something is
# wrong. A line for `crontab -e`, at an hour that no change of clocks leaves out (and write \% there for %):
#
#   15 4 * * *  /usr/local/share/opsq/nightly.sh /var/spool/reports /var/spool/results
set -eu
PATH=${OPSQ_BIN:-/usr/local/bin}:/usr/bin:/bin
export PATH

night=$(date +%F)
out=$2/$night.txt
[ ! -e "$out" ] || exit 0 # it is written as a whole or not at all

opsq start
# While the submission of tonight is unfinished, --unique prints its id and submits nothing.
id=$(opsq list --state completed -m night="$night" -n 1 | cut -f 1)
[ -n "$id" ] || id=$(opsq submit --unique "nightly $night" -m night="$night" --expires 20h --per-file "$1/*.csv")
opsq consume --single "nightly $night" --submission "$id" --until-empty -- sort -u # and nothing else in the queue
[ -z "$(opsq list --state open -m night="$night")" ] || exit 0                     # another run is at it
opsq wait "$id"
opsq results --output "$out" "$id"
