# there is no RDMA device: data goes over TCP; on all hosts of the job or on none
export NCCL_IB_DISABLE='1'
# NCCL_SOCKET_IFNAME is not set: there is no default route and no route of an interface of RDMA's
#   ip route; ip -6 route
