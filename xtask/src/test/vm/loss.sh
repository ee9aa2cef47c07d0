# Transport and engine over Linux's rxe while the network loses one packet in a hundred, in all directions.
set -eu
tc=/sbin/tc # by its path, as the shell here prefers busybox's of that name

for rank in 0 1 2 3 4 5 6 7; do
    $tc qdisc add dev "rank$rank" root netem loss 1%
done
# Without the one that forbids a wake-up that a packet sent again may well cause.
/share/bin/transport_contract --ignored --test-threads=1 --skip nothing_wakes_a_sleeper_for_nothing
/share/bin/rxe --ignored --test-threads=1
for rank in 0 1 2 3 4 5 6 7; do
    $tc -s qdisc show dev "rank$rank" | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p' >>/tmp/dropped
done
awk '{ sum += $1 } END { print sum, "packets were lost"; exit sum == 0 }' /tmp/dropped
