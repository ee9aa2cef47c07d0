# there are ports with a routable RoCE v2 address
export NCCL_IB_DISABLE='0'
# all active ports with a routable address; `=`: these and no others that begin alike
export NCCL_IB_HCA='=mlx5_0:1,mlx5_1:1'
# RoCE v1 ends at the first router
export NCCL_IB_ROCE_VERSION_NUM='2'
# all ports have addresses of this family; by it NCCL from 2.21 on finds the GID
export NCCL_IB_ADDR_FAMILY='AF_INET'
# a routable RoCE v2 GID on all these ports of this host; NCCL before 2.21 does not choose by itself
export NCCL_IB_GID_INDEX='3'
# there is no default route: ranks meet over the first interface of RDMA's
export NCCL_SOCKET_IFNAME='=eth2'
# DSCP 26, as RoCE is marked by custom, with ECT(0): its priority is lossless here; switches have to map it alike
export NCCL_IB_TC='106'
# queue pairs that GPUs drive themselves have a setting of their own: they go where the others go
export NCCL_GIN_IB_TC='106'
# each port has a network of its own and no router: rails do not reach each other
export NCCL_CROSS_NIC='0'
# NCCL_IB_TIMEOUT is not set: how long the fabric takes to lead around a link that fails is not to be seen on a host
#   NCCL from 2.23 on waits 7 times 4.3 s (20): raise it if routes take longer
# NCCL_IB_RETRY_CNT is not set: how long the fabric takes to lead around a link that fails is not to be seen on a host
#   NCCL from 2.23 on waits 7 times 4.3 s (20): raise it if routes take longer
