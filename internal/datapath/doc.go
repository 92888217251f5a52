// SPDX-License-Identifier: Apache-2.0

// Package datapath posts work requests and polls for completions. Each of its
// functions makes one call into C, which costs tens of nanoseconds. Between two
// calls, no lock of C may be held. So operations that belong together are one
// call: the ibv_wr_* calls of a post, the ibv_wc_read_* calls of a completion,
// polling a queue before and after arming it, and polling for a limited time.
//
// The caller must make sure that no object that it passes is destroyed during
// the call.
package datapath
