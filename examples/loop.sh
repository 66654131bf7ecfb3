#!/bin/sh
# Shows the loop that `opsq consume` saves you, for when you want it in your own hands: reserve, read, complete or fail.
#
# The chunks are leases: they survive this script, and come back by themselves when their time is over.
set -u

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'xargs opsq release < "$folder/handles" 2> /dev/null; exit 130' INT TERM

while opsq reserve -n 10 > "$folder/handles"; do # exit 3: nothing is free
    while read -r handle; do
        # The result goes into a file first, so that a program that fails half-way completes nothing.
        if opsq read "$handle" > "$folder/chunk" && tr a-z A-Z < "$folder/chunk" > "$folder/result"; then
            opsq complete "$handle" --result "$folder/result"
        else
            opsq fail "$handle" --reason "ended with $?"
        fi
    done < "$folder/handles"
done
