package ibverbs

import "github.com/verbena-go/verbena/internal/object"

// The self methods give an object's lifetime. That of a nil pointer is nil,
// which answers every use with an error instead of a panic.

func (d *Device) self() *object.Object {
	if d == nil {
		return nil
	}
	return &d.object
}

func (pd *PD) self() *object.Object {
	if pd == nil {
		return nil
	}
	return &pd.object
}

func (mr *MR) self() *object.Object {
	if mr == nil {
		return nil
	}
	return &mr.object
}

func (ch *CompChannel) self() *object.Object {
	if ch == nil {
		return nil
	}
	return &ch.object
}

func (cq *CQ) self() *object.Object {
	if cq == nil {
		return nil
	}
	return &cq.object
}

func (qp *QP) self() *object.Object {
	if qp == nil {
		return nil
	}
	return &qp.object
}
