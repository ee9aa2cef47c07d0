# `ringway perf` beside perftest, by turns between the same two devices of Linux's soft RoCE. The figures are for people: the machine
# is emulated, and a run of each says little; for medians raise `rounds`. It fails if either does, and `ringway perf` does if data
# is wrong.
set -eu
rounds=1

# Each side has a processor of its own. Otherwise the scheduler moves both, and now and then puts them on the same. And whatever else
# is to run has it first: otherwise runs of both programs differ twofold, perhaps as ksoftirqd waits beside a side that polls.
client="/share/bin/chrt -i 0 taskset 1"
server="/share/bin/chrt -i 0 taskset 2"

# gid DEVICE ADDRESS: the index that perftest has to be given.
gid() {
    for file in /sys/class/infiniband/"$1"/ports/1/gids/*; do
        [ "$(cat "$file")" != "0000:0000:0000:0000:0000:ffff:$2" ] || echo "${file##*/}"
    done
}
client_gid=$(gid rxe0 0a00:0001)
server_gid=$(gid rxe1 0a00:0002)

# ours OPERATION MEASURE BYTES COUNT FLAG...: the row of the client.
ours() {
    operation=$1 measure=$2 bytes=$3 count=$4
    shift 4
    # shellcheck disable=SC2086 # a list
    timeout 60 $server /share/bin/ringway-release perf "$operation" "$measure" -d rxe1 2>/tmp/server &
    # shellcheck disable=SC2086 # a list
    timeout 60 $client /share/bin/ringway-release perf "$operation" "$measure" 127.0.0.1 -d rxe0 -s "$bytes" -n "$count" "$@" >/tmp/client 2>&1 || {
        cat /tmp/client /tmp/server
        return 1
    }
    wait $! || { cat /tmp/server; return 1; }
    awk -v bytes="$bytes" '$1 == bytes' /tmp/client
}

# theirs OPERATION MEASURE BYTES COUNT: the same of perftest. Its client doesn't wait for its server.
theirs() {
    flags="-F -s $3 -n $4"
    [ "$2" = lat ] || flags="$flags --report_gbits"
    [ "$1" != atomic ] || flags="-F -n $4"
    # shellcheck disable=SC2086 # a list
    timeout 60 $server "ib_$1_$2" -d rxe1 -x "$server_gid" $flags >/tmp/server 2>&1 &
    try=0
    # shellcheck disable=SC2086 # a list
    until timeout 60 $client "ib_$1_$2" -d rxe0 -x "$client_gid" $flags 127.0.0.1 >/tmp/client 2>&1; do
        try=$((try + 1))
        [ "$try" -lt 25 ] || { cat /tmp/client /tmp/server; return 1; }
        sleep 0.1
    done
    wait $! || { cat /tmp/server; return 1; }
    awk -v bytes="$3" '$1 == bytes' /tmp/client
}

# median FILE: of its numbers, one a line, an odd number of them.
median() {
    sort -n "$1" | sed -n "$(((rounds + 1) / 2))p"
}

# compare OPERATION MEASURE BYTES COUNT: a line with the medians of both.
compare() {
    # The average bandwidth of both in GB/s (perftest: gigabits); the median of latencies, which perftest calls typical.
    if [ "$2" = bw ]; then
        unit=GB/s our='$4' their='$4 / 8'
    else
        unit=us our='$4' their='$5'
    fi
    : >/tmp/our
    : >/tmp/their
    round=0
    while [ "$round" -lt "$rounds" ]; do
        round=$((round + 1))
        ours "$@" >/tmp/row || { cat /tmp/row; return 1; }
        awk "{ print $our }" /tmp/row >>/tmp/our
        theirs "$@" >/tmp/row || { cat /tmp/row; return 1; }
        awk "{ print $their }" /tmp/row >>/tmp/their
    done
    awk -v what="$1 $2, $3 bytes" -v our="$(median /tmp/our)" -v their="$(median /tmp/their)" -v unit="$unit" \
        'BEGIN { printf "%-24s ringway perf %9.3f %s, perftest %9.3f %s, ratio %.2f\n", what, our, unit, their, unit, our / their }'
}

compare write bw 65536 1000
compare read bw 65536 1000
for operation in write send read atomic; do
    compare "$operation" lat 8 5000
done
# An assignment fails with its command.
for test in "send bw 4096 100 --cm --qps 4" "write lat 8 100 --cm" "read bw 65536 100 --cm"; do
    # shellcheck disable=SC2086 # a list
    row=$(ours $test)
    echo "$test: $row"
done
