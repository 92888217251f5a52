// SPDX-License-Identifier: Apache-2.0

// Package rdmastat has only tests: they compare package stat, and the program
// verbena stat, with iproute2's rdma, for processes with known objects.
package stat
