// SPDX-License-Identifier: Apache-2.0

// Package verbena is the top of a module that makes RDMA a first-class citizen
// of Go. It holds no code:
//
//   - package rdmacm connects programs, and sends, receives, reads and writes;
//   - package ibverbs has the devices, memory, queues and requests below that;
//   - packages generated/librdmacm and generated/libibverbs bind every C
//     function, made from rdma-core's headers by gen.
//
// The guides in docs/guide of the repository begin with getting started.
package verbena

//go:generate go run ./gen emit
