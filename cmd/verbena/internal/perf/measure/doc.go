// SPDX-License-Identifier: Apache-2.0

// Package measure measures latency and bandwidth between two ends, as the
// programs of perftest do. The other end may be such a program: ib_send_lat,
// ib_send_bw, ib_write_lat, ib_write_bw, ib_read_lat, ib_read_bw, ib_atomic_lat
// or ib_atomic_bw. Both ends must be given the same test.
//
// The ends agree over a TCP connection (control), connect a queue pair each
// (end), and run loops (latency, bandwidth) whose times become rows (Row).
package measure
