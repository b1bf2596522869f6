#!/bin/sh
# The trial of the services, run by systemd in a system that was booted for it. Its result is the file /passed.
exec > /trial.log 2>&1
set -x

main_pid() { systemctl show -P MainPID elastic-node-driver; }

# Waits a minute for a condition.
wait_for() {
    tries=0
    until eval "$1"; do
        tries=$((tries + 1))
        [ "$tries" -lt 600 ] || return 1
        sleep 0.1
    done
}

# Whether the job has its two workers; as the services' user, who finds it in the list of its jobs.
runs() {
    setpriv --reuid elastic-node --regid elastic-node --clear-groups env HOME=/var/lib/elastic-node \
        elastic-node status --json | grep '"phase":"run","world_size":2'
}

job() {
    echo 'until test -e /enough; do sleep 0.1; done' > /work.sh
    cat >> /etc/default/elastic-node-driver <<FLAGS
ELASTIC_BIND=127.0.0.1:7070
OPTIONS=-n 2 --mode restart -- /bin/sh /work.sh
FLAGS
    cat >> /etc/default/elastic-node-agent <<FLAGS
ELASTIC_JOIN=127.0.0.1:7070
ELASTIC_SLOTS=2
ELASTIC_TOKEN_FILE=/var/lib/elastic-node/driver/token
FLAGS
    systemctl start elastic-node-driver || return
    systemctl start elastic-node-agent || return
    wait_for runs || return

    # A driver that is killed is started again, and goes on with its job.
    killed=$(main_pid)
    kill -9 "$killed" || return
    wait_for '[ "$(main_pid)" != 0 ] && [ "$(main_pid)" != "$killed" ]' || return
    wait_for runs || return
    [ "$(systemctl show -P NRestarts elastic-node-driver)" = 1 ] || return

    # A job that has succeeded is over: nothing is started again.
    touch /enough
    wait_for '[ "$(systemctl is-active elastic-node-driver elastic-node-agent | sort -u)" = inactive ]' || return
    [ "$(systemctl show -P Result elastic-node-driver)" = success ] || return
    [ "$(systemctl show -P Result elastic-node-agent)" = success ]
}

if job; then touch /passed; fi
journalctl --no-pager -o cat -u elastic-node-driver -u elastic-node-agent
# The signal by which systemd powers the system off.
kill -s RTMIN+4 1
