# What Linux's rxe and the endpoint in software say to each other, over IPv4 and IPv6: all operations, and rdma_cm. The
# capture is printed, for the host to look at.
set -eu

tcpdump -i rank0 -n -B 16384 -w /tmp/capture udp port 4791 2>/tmp/said &
until grep -q "listening on" /tmp/said; do sleep 0.1; done
/share/bin/soft_roce --ignored --exact software_and_the_kernel_work_in_each_others_memory
/share/bin/soft_cm --ignored --exact rping_once
sleep 1 # what tcpdump hasn't read yet
kill -INT $!
wait $! || true
grep -q "^0 packets dropped by kernel" /tmp/said || { cat /tmp/said; exit 1; }
echo "capture:"
gzip -c /tmp/capture | base64
