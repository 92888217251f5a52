package ibverbs

import "unsafe"

// Waiting reports whether a goroutine has the queue's turn to wait.
func (cq *CQ) Waiting() bool { return len(cq.turn) > 0 }

// Overran tells the queue of a C object that it has overrun, as reading the
// device's event does.
func Overran(raw unsafe.Pointer) bool {
	cq, found := registered(raw).(*CQ)
	if found {
		cq.overran()
	}
	return found
}
