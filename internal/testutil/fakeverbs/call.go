// SPDX-License-Identifier: Apache-2.0

package fakeverbs

import "github.com/verbena-go/verbena/generated/libibverbs"

// Op is an operation of the provider that was called.
type Op int

// Operations, in the order of fake.h.
const (
	PostSend Op = iota + 1
	PostRecv
	Start
	Complete
	Abort
	Send
	SendImm
	SendInv
	SendTSO
	Write
	WriteImm
	Read
	CompareSwap
	FetchAdd
	BindMW
	LocalInv
	Flush
	AtomicWrite
	SGE
	SGEList
	Inline
	UDAddr
	XRCSRQN
)

// Call is a request that was posted, or a call of ibv_wr_*.
type Call struct {
	Op    Op
	ID    uint64
	Flags libibverbs.SendFlags
	Args  [6]uint64 // arguments of the operation, in order
}
