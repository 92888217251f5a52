// SPDX-License-Identifier: Apache-2.0

//go:build !race

package detector

import "sync/atomic"

// Enabled reports whether the program is built with -race. Callers test it
// before they call the functions of the package.
const Enabled = false

// Queue is a queue of work requests.
type Queue struct{}

// Region is a memory region.
type Region struct{}

// Order has the accesses of a peer that happen before the next message.
type Order struct{}

// Account has what a completion counter has counted.
type Account struct{}

func NewQueue(QueueKind) *Queue                                  { return nil }
func (*Queue) Post([]Request)                                    {}
func (*Queue) Drop()                                             {}
func NewRegion() *Region                                         { return nil }
func (*Region) Release([]byte)                                   {}
func (*Region) Acquire()                                         {}
func (*Region) Before(uint32)                                    {}
func (*Order) Next(uint32)                                       {}
func (*Order) Acquire()                                          {}
func (*Account) Request(uint32)                                  {}
func (*Account) Peer(*Order)                                     {}
func (*Account) Add(Account)                                     {}
func (*Account) Acquire()                                        {}
func Completed([]uint32)                                         {}
func Remote(uint32, bool, RemoteAccess, []byte, *Region, *Order) {}

// CompareAndSwap replaces old by n in the word, and reports whether the word
// was old.
func CompareAndSwap(word *uint64, old, n uint64) bool {
	return atomic.CompareAndSwapUint64(word, old, n)
}
