// SPDX-License-Identifier: Apache-2.0

// Package interop tests this project's programs against rdma-core's, in both
// directions. Its tests need a device and the programs; tests/vm has both.
package interop
