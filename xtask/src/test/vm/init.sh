#!/bin/sh
# The first process of the virtual machine: makes soft-RoCE devices, runs the scenarios that the host shares, and powers
# off. The host reads the report from a serial port of its own; the console tells of this script's own failures.

/bin/busybox mkdir -p /proc /sys /dev /tmp /run /share /applets
/bin/busybox --install -s /applets
export PATH=/usr/sbin:/usr/bin:/applets HOME=/tmp

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
ln -s /proc/self/fd /dev/fd
ulimit -l unlimited

need() {
    "$@" && return
    echo "vm: failed: $*"
    poweroff -f
}

need modprobe -a virtio_pci virtio_console 9p 9pnet_virtio rdma_rxe ib_uverbs rdma_ucm veth bridge
need mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=mmap,ro share /share
. /share/settings # DEVICES, MTU, SECONDS_IN_ALL
(sleep "$SECONDS_IN_ALL"; poweroff -f) & # should the host forget us

for try in 1 2 3 4 5 6 7 8 9 10; do
    [ -e /dev/vport*p1 ] && break
    sleep 0.2
done
report=$(echo /dev/vport*p1)
need [ -e "$report" ]

# One device a rank, each on an interface of its own, which meet in a bridge.
ip link set lo up
sysctl -q -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.all.accept_local=1 \
    net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 net.ipv6.conf.default.accept_dad=0 \
    net.ipv6.conf.all.keep_addr_on_down=1
need ip link add fabric type bridge
need ip link set fabric mtu "$MTU" up
rank=0
while [ "$rank" -lt "$DEVICES" ]; do
    need ip link add "rank$rank" mtu "$MTU" address "02:00:00:00:00:0$((rank + 1))" type veth peer name "port$rank" mtu "$MTU"
    need ip link set "port$rank" master fabric up
    need ip addr add "10.0.0.$((rank + 1))/24" dev "rank$rank"
    need ip addr add "fd00::$((rank + 1))/64" dev "rank$rank" nodad
    need /vm/link-up "$rank"
    need ip rule add pref 50 from "10.0.0.$((rank + 1))" iif lo lookup $((1000 + rank))
    need ip -6 rule add pref 50 from "fd00::$((rank + 1))" iif lo lookup $((1000 + rank))
    need rdma link add "rxe$rank" type rxe netdev "rank$rank"
    rank=$((rank + 1))
done
for family in -4 -6; do
    need ip "$family" rule add pref 100 lookup local
    need ip "$family" rule del pref 0
done

{
    while read -r name seconds; do
        echo "@begin $name"
        start=$(date +%s)
        timeout -k 2 "$seconds" sh "/share/scenarios/$name" 2>&1 </dev/null
        code=$?
        echo
        echo "@end $name $code $(($(date +%s) - start))"
        # The faults of a scenario that did not get to its end are not the next one's.
        for link in $(ls /sys/class/net); do
            /sbin/tc qdisc del dev "$link" root
        done 2>/dev/null
    done </share/order
} >"$report"
sync
poweroff -f
