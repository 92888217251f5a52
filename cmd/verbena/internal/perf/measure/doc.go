// SPDX-License-Identifier: Apache-2.0

// Package measure measures latency and bandwidth between two ends, as the
// programs of perftest do and with one of which the other end may be:
// ib_send_lat, ib_send_bw, ib_write_lat, ib_write_bw, ib_read_lat, ib_read_bw,
// ib_atomic_lat and ib_atomic_bw. Both ends must be told to do the same.
//
// The ends agree over a TCP connection (control), connect a queue pair each
// (end), and run loops (latency, bandwidth) whose times become rows (Row).
package measure
