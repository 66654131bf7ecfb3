#!/bin/sh
# A server in shell: started once per slot, and fed chunk after chunk. This one sorts the lines of each chunk.
#
#     opsq consume -j2 --until-empty --server frames -- ./server.sh
#
# Each chunk comes as a line "LENGTH SUBMISSION/INDEX ATTEMPT JSON" and LENGTH bytes; head -c reads exactly that many.
# Each answer is a line "LENGTH STATUS" and LENGTH bytes: the result, or with a STATUS other than 0, the reason of the failure.
answer=$(mktemp) || exit
trap 'rm -f "$answer"' EXIT
while read -r length name attempt more; do
    status=0
    head -c "$length" | sort >"$answer" || status=$?
    echo "$(wc -c <"$answer") $status"
    cat "$answer"
done
