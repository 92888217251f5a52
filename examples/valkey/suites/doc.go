// SPDX-License-Identifier: Apache-2.0

// Package suites runs the clients' own tests against Valkey, over TCP and over
// RDMA, and compares what passes.
package suites
