// SPDX-License-Identifier: Apache-2.0

// Package counter counts the completions of queue pairs on the device. This is
// for programs that need to know how many requests have completed, and not
// which ones: to know when a peer's data has arrived, say, or how many credits
// are free. They read one number instead of polling a completion for each
// request.
//
// [Create] creates a [Counter], of requests or of bytes. [Counter.Attach] says
// which operations of a queue pair it counts; call it before connecting the
// queue pair:
//
//	c, err := counter.Create(device, counter.Requests)
//	...
//	err = c.Attach(qp, counter.Reads|counter.Writes)
//	...
//	done, err := c.Read()
//	failed, err := c.ReadErrors()
//
// A counter that is attached to several queue pairs adds up their completions.
//
// Package ibverbs describes the lifetimes of objects. Close a counter after the
// queue pairs that it is attached to; [ibverbs.OpenObjects] lists what is open.
//
// All of this needs a device with counters, such as the one of package
// softroce, or rdma-core 65 and a card that has them. Otherwise, calls fail
// with an error matching errors.ErrUnsupported. [QueryCaps] returns what a
// device can count.
package counter
