# `ringway bench` over Linux's soft RoCE, which checks its results: 2, 4 and 8 ranks, each with a device of its own; then two
# hosts, as far as Ringway can tell, that nobody has told to use RDMA; four of which two have no device; and all of it while netem
# loses packets.
set -eu
tc=/sbin/tc # by its path, as the shell here prefers busybox's of that name

# bench RANKS TRANSPORTS COMMAND...: runs it as each rank, with its link, and each with what is before the command there.
# Eight ranks on the machine's two emulated processors may be kept from answering for longer than a real job's.
bench() {
    ranks=$1 transports=$2
    shift 2
    pids=
    rank=0
    while [ "$rank" -lt "$ranks" ]; do
        RINGWAY_RANK=$rank RINGWAY_WORLD_SIZE=$ranks RINGWAY_MASTER=127.0.0.1:7411 RINGWAY_INTERFACES=rank$rank \
            RINGWAY_TRANSPORTS=$transports RINGWAY_FAILURE_AFTER=20s RINGWAY_LOG=info \
            timeout 120 "$@" >"/tmp/bench$rank" 2>&1 &
        pids="$pids $!"
        rank=$((rank + 1))
    done
    for pid in $pids; do
        wait "$pid" || { tail -n 20 /tmp/bench*; return 1; }
    done
}

# sent DEVICE: how many packets it has sent.
sent() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts"; }

all() {
    for ranks in 2 4 8; do
        before=$(sent "rxe$((ranks - 1))")
        bench "$ranks" rdma /share/bin/ringway bench all-reduce --sizes 4,4K,256K -n 3 -w 1
        echo "$ranks ranks, and $(($(sent "rxe$((ranks - 1))") - before)) packets of the last one's device"
        [ "$(sent "rxe$((ranks - 1))")" -gt $((before + 3 * 256 / 4 / ranks)) ]
        cat /tmp/bench0 | grep -v INFO
    done
    # A namespace of System V's makes a host of its own.
    bench 2 auto unshare -i /share/bin/ringway bench all-reduce --sizes 4,256K -n 3 -w 1
    grep -h 'RDMA device' /tmp/bench0 /tmp/bench1
    grep -h 'a packet there and back, and messages of 64 KiB in a row' /tmp/bench0
    # Around the ring a host without a device follows on one with, one with on one with, and one without on one without.
    bench 4 auto unshare -i -m sh -c "$hide" sh /share/bin/ringway bench all-reduce --sizes 4,256K -n 3 -w 1
    grep -h 'no RDMA here' /tmp/bench0
    grep -h 'no RDMA here' /tmp/bench3
    grep -h 'a packet there and back, and messages of 64 KiB in a row' /tmp/bench1
    grep -h 'messages go over TCP, as RDMA does not reach this rank' /tmp/bench1
}

# What the first and the last rank's host would show if it had no device.
hide='case $RINGWAY_RANK in 0 | 3)
    mount -t tmpfs none /sys/class/infiniband
    mount -t tmpfs none /dev/infiniband ;;
esac
exec "$@"'

all
for rank in 0 1 2 3 4 5 6 7; do
    $tc qdisc add dev "rank$rank" root netem loss 1%
done
echo "one packet in a hundred is lost"
all
