package ibverbs

import "github.com/verbena-go/verbena/generated/libibverbs"

// Waiting reports whether a goroutine has the queue's turn to wait.
func (cq *CQ) Waiting() bool { return len(cq.turn) > 0 }

// RawSends and RawRecvs return a batch's requests as C takes them, for tests to
// spoil.
func RawSends(b *SendBatch) []libibverbs.SendWr { return b.arena.used() }

func RawRecvs(b *RecvBatch) []libibverbs.RecvWr { return b.arena.used() }

// ModifyRaw is Modify with the attributes as C has them.
func (qp *QP) ModifyRaw(attr *libibverbs.QpAttr, mask QPAttrMask) error { return qp.modify(attr, mask) }

// RawConfig returns a config as C takes it.
func RawConfig(c QPConfig) (libibverbs.QpInitAttr, error) { return c.initAttr() }
