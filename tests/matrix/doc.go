// SPDX-License-Identifier: Apache-2.0

// Package matrix runs our programs against rdma-core's and perftest's, in both
// directions, between two hosts where the VM has them. It prints a row for each
// case, and at the end how many passed. Without VERBENA_INTEROP=all it runs the
// most telling cases.
package matrix
