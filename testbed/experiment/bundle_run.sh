#!/bin/sh
# The testbed in a bundle, on this machine, with nothing but Python:
#   ./run doctor                               what this machine can do
#   ./run run EXPERIMENT --placement process   run an experiment; it says where the records are
#   ./run                                      lists the tasks
# Take the records home; there: ./inv plot FOLDER, ./inv report FOLDER.
set -eu
case "$0" in */*) cd "${0%/*}" ;; esac
here=$(pwd -P)
python=
for candidate in python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do
    if tag=$("$candidate" -c 'import sys; v = sys.version_info; print(f"cp{v[0]}{v[1]}")' 2>/dev/null) &&
        [ -d "site/$tag" ]; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "error: no Python that this bundle has packages for: $(ls site | grep '^cp' | tr '\n' ' ')" >&2
    exit 1
fi
export PYTHONPATH="$here:$here/site/all:$here/site/$tag"
export PYTHONNOUSERSITE=1
# Signals wait until Python is ready to end what it starts.
exec env --block-signal=INT,TERM,HUP "$python" -m testbed "$@"
