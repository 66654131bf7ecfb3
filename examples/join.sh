#!/bin/sh
# Fan-out and join: each file becomes a submission of its own, and one more works on all their results.
#
#   join.sh FILE...     prints how many lines the files have in all
#
# The last submission is there from the start, and blocked until all that are in its batch have ended. That is kept in
# the queue and not in this script, so a crash, a reboot or consumers elsewhere change nothing.
set -eu

batch=$(date +%s)-$$
opsq start
for file; do
  opsq submit --per-file -m batch="$batch" -m step=count "$file"
done > "parts-$batch"
total=$(opsq submit --after batch="$batch" -m step=total "parts-$batch")
rm "parts-$batch"
opsq explain "$total" >&2 # it is blocked; `opsq show` shows by whom

opsq consume -j4 --until-empty -s 'SelectOnly(step=count)' -- wc -l
opsq consume --until-empty -s 'SelectOnly(step=total)' -- sh -euc '
  sum=0
  while read -r part; do
    lines=$(opsq results "$part")
    sum=$((sum + lines))
  done
  echo "$sum"'
opsq wait "$total"
opsq results "$total"
