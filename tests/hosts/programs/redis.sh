#!/bin/sh
# redis.sh COUNT SERVER REPLICA: counts at the server; each number must be at its replica, too, before it is printed.
set -eu
while ! redis-cli -h "$3" info replication 2>/dev/null | grep -q master_link_status:up; do sleep 0.1; done
number=0
while [ "$number" -lt "$1" ]; do
    number=$(redis-cli -h "$2" incr number)
    there=
    while [ "$there" != "$number" ]; do there=$(redis-cli -h "$3" get number); done
    echo "$number"
done
redis-cli -h "$3" shutdown nosave || true
redis-cli -h "$2" shutdown nosave || true
