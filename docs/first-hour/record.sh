#!/bin/bash
# What a new user sees in the first hour, on terminals of 80 and of 120 columns: writes columns-80.txt and columns-120.txt
# beside this script. Needs tmux, and `elastic-node` and the example `digits` in PATH:
#
#   cargo build && cargo build --example digits
#   PATH=$PWD/target/debug:$PWD/target/debug/examples:$PATH docs/first-hour/record.sh
set -eu
cd "$(dirname "$0")"
home=$(mktemp -d)
trap 'tmux -L first-hour-80 kill-server 2>/dev/null; tmux -L first-hour-120 kill-server 2>/dev/null; true; rm -rf "$home"' EXIT
export HOME=$home XDG_STATE_HOME=$home/state
unset "${!ELASTIC_@}"
# No folder of the machine on which this is recorded is to be seen.
mkdir "$home/bin"
cp "$(command -v elastic-node)" "$(command -v digits)" "$home/bin/"
PATH=$home/bin:$PATH

terminal() { tmux -L "first-hour-$columns" "$@"; }

# A second shell of the same size.
open() {
    terminal new-session -d -s "$1" -x "$columns" -y 24 "cd $home; PS1='\$ ' exec bash --norc --noprofile"
    sleep 0.5
}

# Types a line into a shell, waits, and notes the screen.
see() {
    local shell=$1 seconds=$2 line=$3
    if [ -n "$line" ]; then
        terminal send-keys -t "$shell" clear Enter
        sleep 0.2
        terminal send-keys -t "$shell" "$line" Enter
    fi
    sleep "$seconds"
    terminal capture-pane -p -t "$shell" | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}'
    echo
}

title() { printf '=== %s\n\n' "$1"; }

record() {
    columns=$1
    open one
    open two
    title "1. Help, a misspelt command, the version"
    see one 1 "elastic-node -h | head -22"
    see one 1 "elastic-node statsu"
    see one 1 "elastic-node version"
    title "2. The demo: at the start, after a loss, at the end"
    see one 3 "elastic-node demo"
    see one 7 ""
    see one 16 ""
    title "3. A driver waits for hosts"
    see one 2 "elastic-node --role driver --bind 127.0.0.1:0 -n 3 --elastic-timeout 4 -- digits"
    see one 5 ""
    title "4. and 5. A job, and its status from another shell"
    see one 3 "elastic-node run -n 4 -- digits --epochs 16 --step-ms 60"
    see two 2 "elastic-node status"
    see two 3 "elastic-node status --watch"
    see two 12 ""
    see one 1 ""
    title "6. and 7. A program without --, and one that does not exist"
    see one 2 "elastic-node run -n 2 \$(command -v digits) --epochs 1"
    see one 2 "elastic-node run -n 2 -- digit"
    title "8. and 9. Ctrl-C, and a reader that goes away"
    see one 3 "elastic-node run -n 2 -- digits --epochs 100 --step-ms 60"
    see two 1 "elastic-node status --watch --json | head -c 100"
    terminal send-keys -t one C-c
    see one 3 ""
    title "10. Afterwards"
    see two 1 "elastic-node list"
    see two 1 "elastic-node status | head -8"
    see two 1 "elastic-node history"
    see two 1 "elastic-node explain last"
    title "11. A worker that dies, a host that is taken out and let in again"
    see one 3 "elastic-node run -n 2 --min-np 1 -H a:1,b:1 -- digits --epochs 60 --step-ms 60"
    see two 3 "kill -9 \$(elastic-node status --json | grep -o '\"pid\":[0-9]*' | tail -1 | cut -d: -f2); elastic-node explain last"
    see two 2 "elastic-node drain b; elastic-node status | head -8"
    see two 2 "elastic-node readmit b; elastic-node history"
    see two 2 "elastic-node stop"
    see one 1 ""
    title "12. A host that cannot join says why"
    see one 2 "elastic-node doctor --join 127.0.0.1:9 --token-file nowhere | tail -6"
    terminal kill-server
}

for width in 80 120; do
    record "$width" > "columns-$width.txt"
done
