#!/bin/bash
# PostgreSQL and its clients in one job: a cluster is filled and used by pgbench; the balances must agree.
# `bank.sh prepare` makes the cluster before; start, stop, state and sql are for a server by itself. Its checkpoints and
# its background writer are off, that at its end too: a restart puts files back to their length, it does not unwrite
# what was overwritten in the middle, or bring back what was deleted. Not as root: the server refuses it.
set -eu
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
turns=${1:-5000}
here=$PWD
export PGDATA=$here/cluster PGHOST=$here PGUSER=postgres PGDATABASE=postgres
if [ "$turns" = prepare ]; then
    initdb --no-sync --auth=trust -U postgres > initdb.out
    cat >> "$PGDATA/postgresql.conf" <<EOF
listen_addresses = ''
unix_socket_directories = '$here'
checkpoint_timeout = 1h
max_wal_size = 4GB
bgwriter_lru_maxpages = 0
autovacuum = off
shared_buffers = 64MB
EOF
    exit
fi
case $turns in
start | stop) exec pg_ctl "$turns" -s -w -l postgres.err ;;
state) exec pg_controldata ;;
sql) exec psql -qAt -c "$2" ;;
esac
postgres 2> postgres.err &
server=$!
until pg_isready -q; do sleep 0.02; done
pgbench -q -i -s 1 --no-vacuum 2> /dev/null > /dev/null
echo filled
pgbench -n -c 3 -j 2 -t "$turns" --random-seed=7 > pgbench.out 2>&1 || cat pgbench.out
grep 'actually processed' pgbench.out
psql -At -c 'select count(*) from pgbench_history' \
    -c 'select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)' \
    -c 'select (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches)' \
    -c 'select (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history)'
kill -QUIT "$server"
wait "$server"
echo PASS
