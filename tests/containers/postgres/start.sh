#!/bin/bash
# As root: gives the volume to postgres and becomes it. As postgres: makes the cluster once, then is the server.
set -eu
if [ "$(id -u)" -eq 0 ]; then
    chown postgres:postgres "$PGDATA" /run/postgresql
    chmod 0700 "$PGDATA"
    # The secret is root's.
    POSTGRES_PASSWORD=$(cat "$POSTGRES_PASSWORD_FILE")
    export POSTGRES_PASSWORD
    exec setpriv --reuid=postgres --regid=postgres --init-groups /bin/bash "$0"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username "$POSTGRES_USER" --pwfile <(echo "$POSTGRES_PASSWORD") --auth scram-sha-256 --encoding UTF8 \
        --locale C.UTF-8 --no-sync >/dev/null
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    postgres --single -D "$PGDATA" postgres <<<"CREATE DATABASE \"$POSTGRES_DB\"" >/dev/null
fi
unset POSTGRES_PASSWORD
exec postgres -c listen_addresses='*'
