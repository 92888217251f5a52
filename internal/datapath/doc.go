// Package datapath posts work requests and polls for completions: each of its
// functions is one call into C, however much it does there. A call into C costs
// tens of nanoseconds and may not hold a lock until the next one, so what has
// to stay together is together here: the ibv_wr_* calls that make up one post,
// the ibv_wc_read_* calls that read one completion, a look at a queue before
// and after arming it, and polling for a bounded time.
//
// Its callers keep every object that they pass in existence during the call.
package datapath
