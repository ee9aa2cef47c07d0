# NCCL_IB_DISABLE is not set: there is no RDMA device, by which data goes over TCP; whether other hosts of the job have one is not to be seen
#   if none is to use RDMA, NCCL_IB_DISABLE=1 on all hosts says so; if others do, mend this one: ringway doctor
# NCCL_SOCKET_IFNAME is not set: there is no default route and no route of an interface of RDMA's
#   ip route; ip -6 route
