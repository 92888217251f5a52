// SPDX-License-Identifier: Apache-2.0

// Package vm holds rdma-vm, which runs a command in a throw-away virtual
// machine with Linux's own RDMA stack over Soft-RoCE, and the tests of it.
// README.md says how it works.
package vm
