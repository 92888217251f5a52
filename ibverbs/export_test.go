package ibverbs

// Waiting reports whether a goroutine has the queue's turn to wait.
func (cq *CQ) Waiting() bool { return len(cq.turn) > 0 }
