// SPDX-License-Identifier: Apache-2.0

// Package testdevice finds the RDMA device that tests use, and checks that
// tests leave nothing open.
package testdevice
