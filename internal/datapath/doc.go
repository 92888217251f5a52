// SPDX-License-Identifier: Apache-2.0

// Package datapath posts work requests and polls for completions. Each of its
// functions makes one call into C. Such a call costs tens of nanoseconds and
// must not hold a lock until the next one, so operations that belong together
// are together here: the ibv_wr_* calls of one post, the ibv_wc_read_* calls of
// one completion, polling a queue before and after arming it, and polling for a
// bounded time.
//
// Callers keep every object that they pass from being destroyed during the
// call.
package datapath
