// SPDX-License-Identifier: Apache-2.0

// Package stat has only tests. They compare package ibverbs/stat, and the
// command verbena stat, with iproute2's rdma, for processes with known objects.
package stat
