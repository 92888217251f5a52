// SPDX-License-Identifier: Apache-2.0

// Package nldev asks the kernel's RDMA subsystem over netlink (NETLINK_RDMA,
// RDMA_NL_NLDEV) which devices there are and who uses them, as iproute2's rdma
// does.
//
// It speaks netlink with the syscall package alone, because everybody who
// imports Verbena would get a netlink library into the graph of modules, for
// what is a header, a list of attributes and three kinds of message here.
package nldev
