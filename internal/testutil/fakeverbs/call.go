// SPDX-License-Identifier: Apache-2.0

package fakeverbs

import "github.com/verbena-go/verbena/generated/libibverbs"

// Op is what was called.
type Op int

// The operations; the order is that of fake.h.
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

// Call is a request that was posted, or an ibv_wr_* that was called.
type Call struct {
	Op    Op
	ID    uint64
	Flags libibverbs.SendFlags
	Args  [6]uint64 // of the operation, in order
}
