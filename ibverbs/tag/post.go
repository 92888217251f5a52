// SPDX-License-Identifier: Apache-2.0

package tag

import (
	"runtime"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/batchmem"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
)

const opPost = "ibv_post_srq_ops"

// Post posts the batch's operations to the tag list of a queue in one call of C
// and returns how many it posted, which is all of them unless it fails; see
// ibv_post_srq_ops(3). If an operation cannot be posted, the error is an
// *[ibverbs.PostError]. The batch can be changed or posted again at once.
// Signaled operations complete on the queue of [ibverbs.SRQConfig.CQ], and so
// do messages, whose tag is in [ibverbs.WC.TMInfo].
//
// Post fails with an error matching errors.ErrUnsupported if the queue is not
// of type [ibverbs.SRQTypeTagMatching].
func Post(srq *ibverbs.SRQ, b *Batch) (int, error) {
	object := sibling.ObjectOf(srq)
	if err := object.Use(); err != nil {
		return 0, err
	}
	defer object.Done()
	if b == nil || b.ops == nil {
		return 0, noBatch(object.Name())
	}
	if b.n == 0 {
		return 0, nil
	}
	if err := b.fits(srq, object.Name()); err != nil {
		return 0, err
	}
	defer runtime.KeepAlive(b) // its cleanup would unmap the operations
	ops := b.ops[:b.n]
	b.posted, b.to = len(ops), srq
	*b.bad = nil
	if err := libibverbs.PostSrqOps(srq.Raw(), &ops[0], b.bad); err != nil {
		b.posted = batchmem.Position(ops, *b.bad)
		return b.posted, &ibverbs.PostError{
			Index: b.posted, ID: ops[b.posted].WrId, Err: sibling.Wrap(object.Name(), err),
		}
	}
	return len(ops), nil
}

// fits refuses operations that C would misunderstand, because C does not check
// handles. name is the queue's name in the error.
func (b *Batch) fits(srq *ibverbs.SRQ, name string) error {
	matches := srq.Type() == ibverbs.SRQTypeTagMatching
	for i := range b.ops[:b.n] {
		var why error
		switch from := b.deletes[i]; {
		case !matches:
			why = cerr.InvalidAs(syscall.EOPNOTSUPP, "%v needs a queue of type %s", b.ops[i].Opcode, ibverbs.SRQTypeTagMatching)
		case from != nil && from != srq:
			why = cerr.Invalid("the handle belongs to another queue, %s", sibling.ObjectOf(from).Name())
		default:
			continue
		}
		return &ibverbs.PostError{Index: i, ID: b.ops[i].WrId, None: true, Err: cerr.Argument(opPost, name, why)}
	}
	return nil
}
