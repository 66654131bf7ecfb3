#!/bin/sh
# An approval step: a draft is made at once, and published once somebody has said yes.
#
#   approval.sh FILE                  makes the draft, and prints the two commands that decide
#
# What is to be published is in the queue from the start: it waits for its draft, and then for the end of a pause. Both
# are kept in the queue, so whoever decides may take days, and a reboot changes nothing.
set -eu

opsq start
draft=$(opsq submit --per-file -m step=draft "$1")
publish=$(opsq submit --per-file -m step=publish -m draft="$draft" --after "$draft" "$1")
opsq pause draft="$draft"

opsq consume --until-empty -s 'SelectOnly(step=draft)' -- sort -u
opsq results "$draft" > "draft-$draft"
echo "Read draft-$draft. To publish it: opsq resume draft=$draft; to drop it: opsq cancel $publish"
