#!/bin/sh
# Shows a server in shell: started once per slot, fed chunk after chunk. Here it sorts the lines of each chunk.
#
#     opsq consume -j2 --until-empty --server frames -- ./server.sh
#
# Each chunk comes as a line "LENGTH SUBMISSION/INDEX ATTEMPT JSON" and LENGTH bytes; head -c reads not one byte more.
# Each answer is a line "LENGTH STATUS" and LENGTH bytes: the result, or with a STATUS that is not 0 the reason.
answer=$(mktemp) || exit
trap 'rm -f "$answer"' EXIT
while read -r length name attempt more; do
    status=0
    head -c "$length" | sort >"$answer" || status=$?
    echo "$(wc -c <"$answer") $status"
    cat "$answer"
done
