# Ranks over Linux's rxe of which one is killed, or stopped, in the middle of all-reduces: 2, 4 and 8 of them, and with one packet in
# a hundred lost. All others end, and name it. How soon is not looked at but for what hangs: the machine is emulated and busy.
set -eu
tc=/sbin/tc # by its path, as the shell here prefers busybox's of that name
# How long silence is no failure, and how long a survivor may take to say so.
patience=10
limit=60

# sent RANK: how many packets its device has sent.
sent() { cat "/sys/class/infiniband/rxe$1/ports/1/hw_counters/sent_pkts"; }

# start RANKS: runs them until something ends them, and waits until packets go.
start() {
    ranks=$1
    last=$((ranks - 1))
    before=$(sent "$last")
    rank=0
    while [ "$rank" -lt "$ranks" ]; do
        RINGWAY_RANK=$rank RINGWAY_WORLD_SIZE=$ranks RINGWAY_MASTER=127.0.0.1:7411 RINGWAY_INTERFACES=rank$rank \
            RINGWAY_TRANSPORTS=rdma RINGWAY_FAILURE_AFTER=${patience}s \
            /share/bin/ringway bench all-reduce --sizes 256K -n 1000000 -w 1 >"/tmp/chaos$rank" 2>&1 &
        echo $! >"/tmp/pid$rank"
        rank=$((rank + 1))
    done
    tries=0
    until [ "$(sent "$last")" -gt $((before + 1000)) ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || { echo "no packets of $ranks ranks"; tail -n 5 /tmp/chaos*; exit 1; }
        sleep 0.2
    done
}

# strike SIGNAL VICTIM: sends it, and looks how the others end.
strike() {
    victim=$2
    pid=$(cat "/tmp/pid$victim")
    kill "-$1" "$pid"
    struck=$(date +%s)
    rank=0
    while [ "$rank" -lt "$ranks" ]; do
        survivor=$(cat "/tmp/pid$rank")
        if [ "$rank" -ne "$victim" ]; then
            while kill -0 "$survivor" 2>/dev/null && [ $(($(date +%s) - struck)) -lt "$limit" ]; do
                sleep 0.2
            done
            kill -0 "$survivor" 2>/dev/null && { echo "rank $rank of $ranks hangs after $1"; tail -n 5 /tmp/chaos*; exit 1; }
            wait "$survivor" && { echo "rank $rank of $ranks took $1 for a success"; exit 1; }
            grep -q "rank $victim (host .*pid $pid)" "/tmp/chaos$rank" ||
                { echo "rank $rank of $ranks does not name rank $victim"; tail -n 5 "/tmp/chaos$rank"; exit 1; }
        fi
        rank=$((rank + 1))
    done
    echo "$ranks ranks, $1 of rank $victim: the last survivor has ended after $(($(date +%s) - struck)) s"
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" || true
}

for ranks in 2 4 8; do
    start "$ranks"
    strike KILL $((ranks / 2))
done
start 4
strike STOP 1
for rank in 0 1 2 3; do
    $tc qdisc add dev "rank$rank" root netem loss 1%
done
start 4
strike KILL 3
