# there are ports with a routable RoCE v2 address
export NCCL_IB_DISABLE='0'
# all active ports with a routable address; `=`: these and no others that begin alike
export NCCL_IB_HCA='=rxe0:1,rxe1:1'
# RoCE v1 ends at the first router
export NCCL_IB_ROCE_VERSION_NUM='2'
# all ports have addresses of this family; by it NCCL from 2.21 on finds the GID
export NCCL_IB_ADDR_FAMILY='AF_INET'
# a routable RoCE v2 GID on all these ports of this host; NCCL before 2.21 does not choose by itself
export NCCL_IB_GID_INDEX='1'
# there is no default route: ranks meet over the first interface of RDMA's
export NCCL_SOCKET_IFNAME='=rank0'
# NCCL_IB_TC is not set: rxe0 is RDMA in software, which has no priorities
#   take the DSCP of the fabric's intent, times 4, plus 2 for ECT(0)
# NCCL_IB_TIMEOUT is not set: how long the fabric takes to lead around a link that fails is not to be seen on a host
#   NCCL from 2.23 on waits 7 times 4.3 s (20): raise it if routes take longer
# NCCL_IB_RETRY_CNT is not set: how long the fabric takes to lead around a link that fails is not to be seen on a host
#   NCCL from 2.23 on waits 7 times 4.3 s (20): raise it if routes take longer
# NCCL_CROSS_NIC is not set: the ports reach each other's networks: whether that is as quick as within a rail is up to the fabric
#   0 if each rail has switches of its own, 1 if all ports of a host go to one switch; 2, the default, lets NCCL try both
