package ibverbs

import (
	"fmt"

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
}

// each calls f with what C looks at, as long as f returns true; with the same
// object only once where requests that follow each other have it.
func (b *SendBatch) each(f func(*object.Object) bool) {
	var last *object.Object
	for i := range b.arena.used() {
		if !b.held(i) {
			continue
		}
		for _, o := range b.more[i].used {
			if o == nil || o == last {
				continue
			}
			if last = o; !f(o) {
				return
			}
		}
		wr := &b.arena.wrs[i]
		if SendFlags(wr.SendFlags)&SendInline == 0 {
			continue
		}
		for _, o := range b.owner[i*b.arena.segments:][:wr.NumSge] {
			if o == last {
				continue
			}
			if last = o; !f(o) {
				return
			}
		}
	}
}

// hold keeps what C looks at from being destroyed until release.
func (b *SendBatch) hold() error {
	if b.holds == 0 {
		return nil
	}
	n := 0
	var err error
	b.each(func(o *object.Object) bool {
		if err = o.Use(); err == nil {
			n++
		}
		return err == nil
	})
	if err == nil {
		return nil
	}
	b.each(func(o *object.Object) bool {
		if n == 0 {
			return false
		}
		n--
		o.Done()
		return true
	})
	return fmt.Errorf("request that cannot be posted any more: %w", err)
}

func (b *SendBatch) release() {
	if b.holds == 0 {
		return
	}
	b.each(func(o *object.Object) bool {
		o.Done()
		return true
	})
}
