// SPDX-License-Identifier: Apache-2.0

// Package nldev asks the kernel's RDMA subsystem over netlink (NETLINK_RDMA,
// RDMA_NL_NLDEV) for the devices and the users of their objects, as iproute2's
// rdma does.
package nldev
