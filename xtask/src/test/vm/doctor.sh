# The doctor on a live host that has RDMA, in software: nothing is wrong there, a recording says the same, NCCL's settings are
# those of these devices, a fleet of one host has one row; and while the network loses packets of a transfer, `watch` names that.
set -eu
tc=/sbin/tc # by its path, as the shell here prefers busybox's of that name
ringway=/share/bin/ringway

seconds() { cut -d ' ' -f 1 /proc/uptime; }
start=$(seconds)
$ringway doctor | tee /tmp/doctor
awk -v start="$start" -v end="$(seconds)" 'BEGIN { printf "ringway doctor took %.1f s\n", end - start }'
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

# One packet in twenty of the sender's.
$tc qdisc add dev rank0 root netem loss 5%
timeout 100 $ringway perf write bw -d rxe1 >/tmp/server 2>&1 &
server=$!
timeout 100 $ringway perf write bw 127.0.0.1 -d rxe0 -s 65536 -n 400 >/tmp/client 2>&1 &
transfer=$!
code=0
$ringway doctor watch --interval 2 --seconds 12 >/tmp/watch || code=$?
$tc qdisc del dev rank0 root
wait $transfer || cat /tmp/client
kill $server 2>/dev/null || true
grep -v -e ' - *- *$' /tmp/watch
[ "$code" = 2 ]
grep -q '^error  *watch.dropping_fabric  *rxe[01] port 1  *packets of RDMA are lost on the way' /tmp/watch
