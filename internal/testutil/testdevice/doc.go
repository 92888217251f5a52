// SPDX-License-Identifier: Apache-2.0

// Package testdevice finds the RDMA device that tests use, and tests that they
// leave nothing behind.
package testdevice
