#!/bin/bash
# What a program makes of owners and devices without the right to: inside of fakeroot, whose daemon remembers it, asked
# by every program that is executed through System V message queues. One line per turn.
set -eu
mkdir tree
for ((turn = 0; turn < 40; turn++)); do
    echo "$turn" > "tree/f$turn"
    chown "$((turn + 1000)):$((turn * 7))" "tree/f$turn"
    chmod "$((turn % 2 ? 640 : 4755))" "tree/f$turn"
    mknod "tree/d$turn" c 1 "$turn"
    echo "$turn $(stat -c '%u:%g %a' "tree/f$turn" "tree/f$((turn / 2))" | tr '\n' ' ')$(stat -c '%t:%T' "tree/d$turn")"
    sleep 0.01
done
tar --sort=name --mtime=@0 -cf - tree | sha256sum
echo PASS
