// SPDX-License-Identifier: Apache-2.0

// Package nldev queries the kernel's RDMA subsystem over netlink (NETLINK_RDMA,
// RDMA_NL_NLDEV) for devices, their objects and the users of the objects, as
// iproute2's rdma does.
package nldev
