# The doctor on a live host that has RDMA, in software: nothing is wrong there, a recording says the same, NCCL's settings are
# those of these devices, a fleet of one host has one row; and of a job of two ranks `watch` says nothing, until the network loses
# its packets: then it names that.
set -eu
tc=/sbin/tc # by its path, as the shell here prefers busybox's of that name
ringway=/share/bin/ringway

seconds() { cut -d ' ' -f 1 /proc/uptime; }
# timed COMMAND...: says how long it took, to a hundredth.
timed() {
    start=$(seconds)
    "$@"
    awk -v start="$start" -v end="$(seconds)" -v what="$*" 'BEGIN { printf "%.2f s: %s\n", end - start, what }'
}
# What the emulation makes of starting the program, of looking at all GIDs, and of all checks.
$ringway --version >/dev/null
timed $ringway --version | tail -n 1
timed find /sys/class/infiniband/ -name 'types' | tail -n 1
$ringway doctor >/dev/null
$ringway doctor >/dev/null # from here on all of the program is in memory
timed $ringway doctor | tee /tmp/timed
sed '$d' /tmp/timed >/tmp/doctor
grep '^nothing found; ' /tmp/doctor

$ringway doctor record /tmp/recorded >/dev/null
$ringway doctor --root /tmp/recorded | diff /tmp/doctor -

eval "$($ringway env nccl --export)"
echo "NCCL_IB_HCA $NCCL_IB_HCA, NCCL_IB_GID_INDEX ${NCCL_IB_GID_INDEX-not set}, NCCL_IB_DISABLE $NCCL_IB_DISABLE"
[ "$NCCL_IB_DISABLE" = 0 ]
case $NCCL_IB_HCA in =rxe0:1,rxe1:1,*,rxe7:1) ;; *) exit 1 ;; esac
$ringway doctor --only gids | grep '^nothing found; '

# The processors of an emulated machine are what they are: the fleet's own findings do not count here.
timeout 100 $ringway run -n 2 --no-prefix -- $ringway doctor --fleet | tee /tmp/fleet || true
grep 'all ranks are on one host' /tmp/fleet
grep ' 0-1 .*nothing found; ' /tmp/fleet

# rank RANK: all-reduces of a job of two ranks, each over its own device, whose results are checked.
rank() {
    RINGWAY_RANK=$1 RINGWAY_WORLD_SIZE=2 RINGWAY_MASTER=127.0.0.1:7412 RINGWAY_INTERFACES=rank$1 RINGWAY_TRANSPORTS=rdma \
        RINGWAY_FAILURE_AFTER=20s timeout 60 $ringway bench all-reduce --sizes 256K -n 20 -w 1 >"/tmp/rank$1" 2>&1
}
# watched: what `watch` says of such jobs, one after the other, with its exit code in $code.
watched() {
    rm -f /tmp/over
    (while [ ! -e /tmp/over ]; do
        rank 1 &
        rank 0 && wait $! || { touch /tmp/failed; break; }
    done) &
    jobs=$!
    code=0
    $ringway doctor watch --interval 2 --seconds 10 >/tmp/watch || code=$?
    touch /tmp/over
    wait $jobs
    [ ! -e /tmp/failed ] || { cat /tmp/rank0 /tmp/rank1; return 1; }
    grep -v -e ' - *- *$' /tmp/watch
}

watched
[ "$code" = 0 ]
grep '^nothing found; ' /tmp/watch
# One packet in twenty of the first rank's, of a fabric that should lose none.
$tc qdisc add dev rank0 root netem loss 5%
watched
$tc -s qdisc show dev rank0 | grep dropped
$tc qdisc del dev rank0 root
[ "$code" = 2 ]
grep '^error  *watch.dropping_fabric  *rxe[01] port 1  *packets of RDMA are lost on the way' /tmp/watch
tail -n 3 /tmp/rank0
