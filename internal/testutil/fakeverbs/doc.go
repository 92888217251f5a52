// SPDX-License-Identifier: Apache-2.0

// Package fakeverbs is a provider without a device, for tests and benchmarks of
// code that posts and polls. It has an open context with a queue pair and a
// completion queue. Their operations return at once, record their calls, and do
// what a test has set.
package fakeverbs
