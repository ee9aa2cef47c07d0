# Ranks over Linux's rxe of which one is killed, or stopped, in the middle of all-reduces: 2, 4 and 8 of them, and with one packet in
# a hundred lost. All others end, and name it. And one whose device's link is cut, while TCP, which is this host's own, still
# reaches it: all go on, over TCP, and over RDMA again when the link is mended. How soon is not looked at but for what hangs: the
# machine is emulated and busy.
set -eu
tc=/sbin/tc # by its path, as the shell here prefers busybox's of that name
# How long silence is no failure, and how long a survivor may take to say so.
patience=10
limit=60

# sent RANK: how many packets its device has sent.
sent() { cat "/sys/class/infiniband/rxe$1/ports/1/hw_counters/sent_pkts"; }

# await WHAT COMMAND...: waits for it to succeed.
await() {
    what=$1
    shift
    tries=0
    while ! "$@"; do
        tries=$((tries + 1))
        [ "$tries" -lt 450 ] || { echo "$ranks ranks, and after 90 s not: $what"; tail -n 5 /tmp/chaos*; exit 1; }
        sleep 0.2
    done
}
has_failed() { grep -q 'RDMA to this rank has failed' /tmp/chaos*; }
by_tcp() { [ "$(cat /sys/class/net/lo/statistics/rx_bytes)" -gt "$1" ]; }
by_rdma() { [ "$(sent "$last")" -gt "$1" ]; }

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
    await "packets go" by_rdma $((before + 1000))
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

# cut_off VICTIM: cuts the link of its device for as long as RDMA needs to fail and some more. Nothing tells of it.
cut_off() {
    for end in rank port; do
        $tc qdisc add dev "$end$1" root netem loss 100%
    done
    await "RDMA has failed" has_failed
    await "all-reduces go on over TCP" by_tcp $(($(cat /sys/class/net/lo/statistics/rx_bytes) + 4000000))
    for end in rank port; do
        $tc qdisc del dev "$end$1" root
    done
    mended=$(date +%s)
    await "RDMA goes again" by_rdma $(($(sent "$last") + 1000))
    echo "$ranks ranks, the link of rank $1 cut: they go on over TCP, and over RDMA $(($(date +%s) - mended)) s after it is mended"
}

for ranks in 2 4 8; do
    start "$ranks"
    strike KILL $((ranks / 2))
    start "$ranks"
    strike STOP $((ranks / 2))
    start "$ranks"
    cut_off $((ranks - 1))
    strike KILL 0
done
for rank in 0 1 2 3; do
    $tc qdisc add dev "rank$rank" root netem loss 1%
done
start 4
strike KILL 3
