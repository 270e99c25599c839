#!/bin/bash
# A terminal multiplexer with shells inside, driven from outside. terminal.sh tmux|screen [TURNS [FOLDER]]
# FOLDER: where its socket and a pipe are; it may be emptied between a kill and a restart.
set -eu
kind=$1
turns=${2:-40}
folder=${3:-$PWD}
answers=$folder/answers
export SHELL=/bin/bash TERM=xterm TMUX_TMPDIR=$folder SCREENDIR=$folder/screens
unset TMUX STY
name=t$$
mkdir -p -m 700 "$SCREENDIR"
shell="/bin/bash --norc --noprofile"
if [ "$kind" = tmux ]; then
    tmux -f /dev/null new-session -d -s "$name" -x 80 -y 24 "$shell"
    send() { tmux send-keys -t "$name" "$1" Enter; }
    finish() { tmux kill-server; }
else
    screen -c /dev/null -d -m -S "$name" $shell
    send() { screen -S "$name" -p 0 -X stuff "${1//\$/\\$}"$'\n'; } # it would put in its own variables
    finish() { screen -S "$name" -X quit; }
fi
rm -f "$answers"
mkfifo "$answers"
exec 3<> "$answers"
sleep 0.3
send "count=0; exec 4> $answers"
for ((turn = 0; turn < turns; turn++)); do
    send "count=\$((count + $turn)); echo \"$turn \$count \$(tty < /dev/tty > /dev/null && stty size | wc -w)\" >&4"
    read -r -t 20 answer <&3
    echo "$answer"
    sleep 0.02
done
finish
echo PASS
