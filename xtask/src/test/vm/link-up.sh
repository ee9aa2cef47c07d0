#!/bin/sh
# Brings up the link of rank $1 with its routes, which the kernel drops when a link goes down.
#
# All ranks live in one network namespace, since rxe of this kernel knows the initial one only. So that their packets
# cross the wire all the same, what comes from a rank's address is routed by a table of its own, which is looked up before
# the local one would take the short cut.
set -e
rank=$1
table=$((1000 + rank))
ip link set "rank$rank" up
ip route replace local "10.0.0.$((rank + 1))" dev "rank$rank" table "$table"
ip route replace 10.0.0.0/24 dev "rank$rank" src "10.0.0.$((rank + 1))" table "$table"
ip -6 route replace local "fd00::$((rank + 1))" dev "rank$rank" table "$table"
ip -6 route replace fd00::/64 dev "rank$rank" table "$table"
