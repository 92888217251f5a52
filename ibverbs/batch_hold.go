package ibverbs

import (
	"fmt"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// held reports whether C looks at something of request i while it posts.
func (b *SendBatch) held(i int) bool {
	return SendFlags(b.arena.wrs[i].SendFlags)&SendInline != 0 || b.more[i].used[0] != nil
}

// look makes C look at objects while it posts request i, which was just added
// or has had as many before.
func (b *SendBatch) look(i int, first, second *object.Object) {
	if !b.held(i) {
		b.holds++
	}
	b.more[i].used = [2]*object.Object{first, second}
	b.stale = true
}

// find lists what C looks at, the same object once where requests that follow
// each other have it.
func (b *SendBatch) find() {
	clear(b.uses)
	b.uses, b.stale = b.uses[:0], false
	var last *object.Object
	note := func(o *object.Object) {
		if o != nil && o != last {
			b.uses = append(b.uses, o)
			last = o
		}
	}
	for i := range b.arena.used() {
		if !b.held(i) {
			continue
		}
		for _, o := range b.more[i].used {
			note(o)
		}
		if SendFlags(b.arena.wrs[i].SendFlags)&SendInline != 0 {
			for _, mr := range b.owners(i) {
				note(mr.self())
			}
		}
	}
}

// begin makes the batch, which has these requests, ready for C until finish: the
// list ends with its last request, and what C looks at is kept from being
// destroyed.
func (b *SendBatch) begin(wrs []libibverbs.SendWr) error {
	if b.holds > 0 {
		if err := b.hold(); err != nil {
			return err
		}
	}
	wrs[len(wrs)-1].Next = nil
	return nil
}

// finish undoes what begin did. Each request points at the next one again,
// which costs less here than when requests are added.
func (b *SendBatch) finish() {
	if n := b.arena.n; n < len(b.arena.wrs) {
		b.arena.wrs[n-1].Next = &b.arena.wrs[n]
	}
	if b.holds > 0 {
		b.release()
	}
}

func (b *SendBatch) hold() error {
	if b.stale {
		b.find()
	}
	for i, o := range b.uses {
		if err := o.Use(); err != nil {
			for _, used := range b.uses[:i] {
				used.Done()
			}
			return fmt.Errorf("request that cannot be posted any more: %w", err)
		}
	}
	return nil
}

func (b *SendBatch) release() {
	for _, o := range b.uses {
		o.Done()
	}
}
