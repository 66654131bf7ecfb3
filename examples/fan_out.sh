#!/bin/sh
# Work that finds more work: the files below a folder, with their sizes. Each folder that is found becomes a submission
# of its own, in the commit that completes the one it was found in, so that none is lost and none is listed twice,
# whatever is killed: after an interruption, the same `opsq consume` goes on.
#
# Usage: fan_out.sh FOLDER
set -eu

program=$(dirname "$0")/folder.py
job=tree-$$ # names this run
opsq start
printf %s "$1" | opsq submit -m job="$job" - > /dev/null
opsq consume -j2 -s "SelectOnly(job=$job)" --until-empty -- python3 "$program"

opsq list -m job="$job" | while read -r id rest; do
    opsq results "$id"
done | sort -k 2
