#!/bin/sh
# What `opsq consume` replaces, if you prefer to write the loop yourself: reserve, read, complete or fail.
#
# The chunks are leases: they outlive this script, and expire by themselves.
set -u

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'xargs opsq release < "$folder/handles" 2> /dev/null; exit 130' INT TERM

while opsq reserve -n 10 > "$folder/handles"; do # exit 3: nothing is free
    while read -r handle; do
        # The result goes to a file first, so that a program that fails half-way completes nothing.
        if opsq read "$handle" > "$folder/chunk" && tr a-z A-Z < "$folder/chunk" > "$folder/result"; then
            opsq complete "$handle" --result "$folder/result"
        else
            opsq fail "$handle" --reason "ended with $?"
        fi
    done < "$folder/handles"
done
