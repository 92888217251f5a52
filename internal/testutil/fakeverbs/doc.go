// SPDX-License-Identifier: Apache-2.0

// Package fakeverbs is a provider without a device, for tests and benchmarks of
// what posts and polls: an open context with a queue pair and a completion
// queue whose operations return at once, and do and record what a test says.
package fakeverbs
